package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/lab/fabric"
)

// Options configure the lab that Up makes. DefaultOptions has the defaults.
type Options struct {
	Nodes     int           `json:"nodes"`
	ProxyMode string        `json:"proxyMode"`
	Family    fabric.Family `json:"family"`
	// LoadBalancer selects the source of addresses for Services of type LoadBalancer: one of LoadBalancers.
	LoadBalancer string `json:"loadBalancer"`
	// EdgeTarget selects the targets of the edge's connections, with BalancerEdge: one of EdgeTargets.
	EdgeTarget string `json:"edgeTarget"`
	KubeProxy  string `json:"kubeProxy"` // path of a kube-proxy to run instead of Fairway's proxy; empty means Fairway's
	APIPort    int    `json:"apiPort"`   // on 127.0.0.1
	// Like makes the lab begin as another program leaves a cluster: "" or LikeKubeadm.
	Like      string `json:"like,omitempty"`
	Deploy    string `json:"deploy"`    // directory with a kustomization; empty means none
	Image     string `json:"image"`     // archive of Fairway's image; empty means none
	ImagesDir string `json:"imagesDir"` // archives of further images; empty means none
	// EgressAddresses adds the component that lets pods' packets leave with the addresses of Services.
	EgressAddresses bool `json:"egressAddresses"`
	// NetworkPolicy adds the component that enforces NetworkPolicies.
	NetworkPolicy bool `json:"networkPolicy"`
	// Gateway adds the component with the gateways. Gateway API's CustomResourceDefinitions are not part of it.
	Gateway bool `json:"gateway"`
	// MetricsServer serves the API metrics.k8s.io.
	MetricsServer bool `json:"metricsServer"`
	// Publish maps ports of this machine's 127.0.0.1 to NodePorts, as HOSTPORT:NODEPORT.
	Publish []string `json:"publish,omitempty"`
	// PodNetwork selects the way to pods on other nodes: one of PodNetworks.
	PodNetwork string `json:"podNetwork"`
	CNIPlugins string `json:"cniPlugins"` // directory with the reference plugins, for PodNetwork bridge
	// Subnets is the number of node subnets, 1 or 2. With 2, the nodes with even numbers are behind a router.
	Subnets int  `json:"subnets"`
	Keep    bool `json:"-"` // keep the parts of a failed Up for inspection
}

// ProxyModes are the proxy modes a lab can run, the default first.
var ProxyModes = append(datapath.Modes(), datapath.Auto)

// PodNetworks are the ways to the pods of other nodes, the default first.
var PodNetworks = []string{"routes", "vxlan", "auto", podNetworkWireGuard, podNetworkBGP, podNetworkBridge}

// podNetworkWireGuard needs a kernel with WireGuard.
const podNetworkWireGuard = "wireguard"

// podNetworkBGP needs a router and speakers.
const podNetworkBGP = "bgp"

// LoadBalancers are the sources of addresses for Services of type LoadBalancer, the default first. They are a pool in
// the nodes' network, a pool that a router learns, the nodes' own addresses, an outside load balancer's pool, and none.
var LoadBalancers = []string{BalancerL2, BalancerBGP, BalancerServiceLB, BalancerEdge, BalancerNone}

// The values of Options.LoadBalancer.
const (
	BalancerL2        = "l2"
	BalancerBGP       = "bgp"
	BalancerServiceLB = "servicelb"
	BalancerEdge      = "edge"
	BalancerNone      = "none"
)

// DefaultOptions returns the options of "fairway-lab up". It looks for images and manifests next to the binary, where
// "make" puts them.
func DefaultOptions() Options {
	o := Options{Nodes: 3, ProxyMode: ProxyModes[0], LoadBalancer: LoadBalancers[0], EdgeTarget: EdgeTargets[0], PodNetwork: PodNetworks[0], Subnets: 1, Family: fabric.IPv4, APIPort: 16443}
	exe, err := os.Executable()
	if err != nil {
		return o
	}
	bin := filepath.Dir(exe)
	o.Image = filepath.Join(bin, "fairway-image.tar")
	o.ImagesDir = filepath.Join(bin, "images")
	o.CNIPlugins = filepath.Join(bin, "cni-plugins")
	o.Deploy = filepath.Join(bin, "deploy")
	if _, err := os.Stat(o.Deploy); err != nil {
		o.Deploy = filepath.Join(bin, "..", "deploy")
	}
	return o
}

// Validate returns a one-line error if the options are wrong.
func (o Options) Validate() error {
	if !slices.Contains(ProxyModes, o.ProxyMode) {
		return fmt.Errorf("unknown proxy mode %q [choose one of %s]", o.ProxyMode, strings.Join(ProxyModes, ", "))
	}
	if !slices.Contains(LoadBalancers, o.LoadBalancer) {
		return fmt.Errorf("unknown load balancer %q [choose one of %s]", o.LoadBalancer, strings.Join(LoadBalancers, ", "))
	}
	if err := o.checkLike(); err != nil {
		return err
	}
	if err := o.checkEdge(); err != nil {
		return err
	}
	if !slices.Contains(PodNetworks, o.PodNetwork) {
		return fmt.Errorf("unknown pod network %q [choose one of %s]", o.PodNetwork, strings.Join(PodNetworks, ", "))
	}
	if err := o.checkSubnets(); err != nil {
		return err
	}
	if err := o.checkPlugins(); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil && o.ProxyMode == datapath.IPVS {
		return errors.New("proxy mode ipvs: this kernel has no IPVS, or has not loaded it [modprobe ip_vs]")
	}
	if o.Nodes < 1 || o.Nodes > fabric.MaxNodes {
		return fmt.Errorf("--nodes %d [choose from 1 to %d]", o.Nodes, fabric.MaxNodes)
	}
	if o.APIPort < 1 || o.APIPort > 65535 {
		return fmt.Errorf("--api-port %d [choose from 1 to 65535]", o.APIPort)
	}
	if err := o.checkPublish(); err != nil {
		return err
	}
	for _, file := range []struct{ flag, path, advice string }{
		{"--kube-proxy", o.KubeProxy, "name a kube-proxy program: lab/README.md says how to build one"},
		{"--image", o.Image, "make image builds it"},
		{"--images-dir", o.ImagesDir, "make images builds it"},
		{"--deploy", o.Deploy, "name the directory deploy of the repository"},
	} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			return fmt.Errorf("%s: %w [%s]", file.flag, err, file.advice)
		}
	}
	if err := o.checkImages(); err != nil {
		return err
	}
	if o.KubeProxy != "" {
		if err := unix.Access(o.KubeProxy, unix.X_OK); err != nil {
			return fmt.Errorf("--kube-proxy %s is not a program: %w", o.KubeProxy, err)
		}
	}
	return nil
}

// checkSubnets returns an error if two subnets, a pod network by BGP, or egress addresses contradict other options.
func (o Options) checkSubnets() error {
	switch {
	case o.Subnets < 1 || o.Subnets > 2:
		return fmt.Errorf("no lab has %d subnets (--subnets) [choose 1 or 2]", o.Subnets)
	case o.Subnets == 2 && o.PodNetwork == PodNetworks[0]:
		return errors.New("--pod-network routes reaches no pods in another subnet [choose --pod-network auto, vxlan or bgp]")
	case o.Subnets == 2 && o.PodNetwork == podNetworkBridge:
		return errors.New("--pod-network bridge is for nodes in one subnet [choose --pod-network auto, vxlan or bgp]")
	case o.PodNetwork == podNetworkBGP && o.LoadBalancer != BalancerL2 && o.LoadBalancer != BalancerBGP:
		return fmt.Errorf("--pod-network bgp needs the speaker, which --load-balancer %s does not install [choose --load-balancer l2 or bgp]", o.LoadBalancer)
	case o.EgressAddresses && o.LoadBalancer != BalancerL2 && o.LoadBalancer != BalancerBGP:
		return fmt.Errorf("--egress-addresses needs the speaker, which --load-balancer %s does not install [choose --load-balancer l2]", o.LoadBalancer)
	case o.Subnets == 2 && o.front() != "":
		return fmt.Errorf("--load-balancer %s is for nodes in one subnet [choose --load-balancer l2]", o.LoadBalancer)
	}
	return nil
}

// packages maps each program that a lab needs to its Debian package.
var packages = []struct{ program, name string }{
	{"containerd", "containerd"},
	{"containerd-shim-runc-v2", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"nft", "nftables"},
	{"mount", "mount"},
}

// CheckRoot returns an error with advice if the user is not root.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("only root may use a lab, which is made of network namespaces and mounts [sudo fairway-lab …]")
	}
	return nil
}

// checkMachine returns an error if this machine lacks a program or a kernel feature for a lab with these options.
func (o Options) checkMachine() error {
	var missing, install []string
	wanted := packages
	if o.routerIn() != "" {
		wanted = append(slices.Clone(wanted), struct{ program, name string }{"bird", "bird2"})
	}
	for _, p := range wanted {
		if _, err := exec.LookPath(p.program); err == nil {
			continue
		}
		missing = append(missing, p.program)
		if !slices.Contains(install, p.name) {
			install = append(install, p.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not installed: %s [apt-get install %s]",
			strings.Join(missing, ", "), strings.Join(install, " "))
	}
	if err := o.checkInotify(); err != nil {
		return err
	}
	if err := fabric.CheckKernel(); err != nil || o.PodNetwork != podNetworkWireGuard {
		return err
	}
	return fabric.CheckWireGuard()
}
