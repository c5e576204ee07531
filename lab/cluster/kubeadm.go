package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/kubeadm"
)

// LikeKubeadm begins a lab as kubeadm leaves a cluster, with a plain CNI plugin: kube-proxy, CoreDNS, and no Fairway.
const LikeKubeadm = "kubeadm"

// Begun returns the options with those that Like implies.
func (o Options) Begun() Options {
	if o.Like != LikeKubeadm {
		return o
	}
	o.Deploy, o.PodNetwork, o.LoadBalancer = "", podNetworkBridge, BalancerNone
	if exe, err := os.Executable(); err == nil && o.KubeProxy == "" {
		o.KubeProxy = filepath.Join(filepath.Dir(exe), "kube-proxy")
	}
	return o
}

// runsPods reports whether Up brings the programs that pods need.
func (o Options) runsPods() bool { return o.Deploy != "" || o.Like != "" }

// checkLike returns an error if Like is unknown, or the lab has no program for CoreDNS.
func (o Options) checkLike() error {
	switch {
	case o.Like != "" && o.Like != LikeKubeadm:
		return fmt.Errorf("unknown kind of cluster %q (--like) [choose %s]", o.Like, LikeKubeadm)
	case o.Like == LikeKubeadm && o.Image == "":
		return errors.New("--like kubeadm needs Fairway's image, whose program stands in for CoreDNS [make image builds it]")
	}
	return nil
}

// kubeadm returns kubeadm's configuration of this cluster. kube-proxy leaves the conntrack limits as they are, because
// they belong to the machine. Next to an agent it has other ports, because the agent has the usual ones.
func (b *builder) kubeadm() (kubeadm.Cluster, error) {
	ports := ""
	if b.Like == "" {
		ports = fmt.Sprintf("healthzBindAddress: 0.0.0.0:10356\nmetricsBindAddress: %s\n", b.kubeProxyAddress())
	}
	return kubeadm.Config(b.clusterConfiguration() + fmt.Sprintf(`---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %q}
nodeRegistration: {name: %s}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %q
conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
%s`, b.plan.ControlPlane()[0].Addr(), fabric.NodeName(1), b.ProxyMode, ports))
}

// initKubeadm makes the objects that `kubeadm init` makes.
func (b *builder) initKubeadm(context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	c, err := b.kubeadm()
	if err != nil {
		return err
	}
	return c.Init(client)
}

// coreDNSArchive returns the path of the archive of CoreDNS's image, or "" if the lab does not run CoreDNS.
func (b *builder) coreDNSArchive() string {
	if b.Like == "" {
		return ""
	}
	return b.path("coredns.tar")
}

// coreDNS stands in for CoreDNS's program. kubeadm's Deployment starts it with -conf FILE.
const coreDNS = "#!/bin/sh\nexec /fairway dns --conf \"$2\"\n"

// writeCoreDNSImage writes an image archive with the name of CoreDNS's image, and with the program of Fairway's image.
func (b *builder) writeCoreDNSImage(archive string) error {
	program := b.path("coredns")
	if err := fileOfImage(b.Image, "usr/bin/fairway", program); err != nil {
		return fmt.Errorf("find a program for CoreDNS in %s: %w", b.Image, err)
	}
	var tree image.Tree
	sh, err := image.Find("dash")
	if err != nil {
		return fmt.Errorf("make an image of CoreDNS: %w", err)
	}
	tree.Program(sh)
	tree.Link("/bin/sh", sh)
	tree.Copy("/fairway", program)
	tree.File("/coredns", 0o755, coreDNS)
	layer, err := tree.Layer()
	if err != nil {
		return fmt.Errorf("make an image of CoreDNS: %w", err)
	}
	c, err := b.kubeadm()
	if err != nil {
		return err
	}
	img := image.Image{Names: []string{c.DNSImage()}, Layers: []*image.Layer{layer}}
	img.Config.Entrypoint = []string{"/coredns"}
	return image.WriteFile(archive, img)
}
