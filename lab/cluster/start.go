package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/controlplane"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
	"github.com/fairway-net/fairway/lab/pki"
	"github.com/fairway-net/fairway/lab/process"
)

// The hidden commands with which the binary starts itself again.
const (
	ChildControlPlane = "control-plane"
	ChildInit         = "init"
	ChildKubelet      = "kubelet"
)

const controlPlane = "control-plane"

// makePKI makes all certificates and kubeconfigs of the cluster, with the names that kube-apiserver's authorizers know.
func (b *builder) makePKI() error {
	ca, err := pki.New(b.pki())
	if err != nil {
		return err
	}
	if err := ca.IssueServiceAccount(); err != nil {
		return err
	}
	local, loopback := []string{"localhost"}, []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
	subjects := map[string]pki.Subject{
		controlplane.CertAPIServer: {
			Name: "kube-apiserver",
			Names: append([]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"}, local...),
			Addrs: slices.Concat(fabric.Addrs(b.plan.ControlPlane()), b.plan.APIService(), loopback),
		},
		controlplane.CertKubeletClient:     {Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		controlplane.CertControllerManager: {Name: "system:kube-controller-manager", Names: local, Addrs: loopback},
		controlplane.CertScheduler:         {Name: "system:kube-scheduler", Names: local, Addrs: loopback},
		"admin":                            {Name: "fairway-lab-admin", Groups: []string{"system:masters"}},
	}
	if b.MetricsServer {
		subjects[controlplane.CertFrontProxy] = pki.Subject{Name: controlplane.CertFrontProxy}
		subjects[controlplane.CertMetrics] = metricsSubject()
	}
	conf := func(name string) string { return controlplane.Kubeconfig(b.pki(), name) }
	kubeconfigs := map[string]string{
		controlplane.CertControllerManager: conf(controlplane.CertControllerManager),
		controlplane.CertScheduler:         conf(controlplane.CertScheduler),
	}
	if b.MetricsServer {
		kubeconfigs[controlplane.CertMetrics] = conf(controlplane.CertMetrics)
	}
	for name, subject := range subjects {
		if err := ca.Issue(name, subject); err != nil {
			return err
		}
	}
	for name, path := range kubeconfigs {
		if err := ca.Kubeconfig(path, name, b.plan.APIServer()); err != nil {
			return err
		}
	}
	for n := 1; n <= b.Nodes; n++ {
		if err := b.issueNode(ca, n); err != nil {
			return err
		}
	}
	return ca.Kubeconfig(b.Kubeconfig(), "admin", fmt.Sprintf("https://127.0.0.1:%d", b.APIPort))
}

// issueNode makes the certificates and the kubeconfig of a node's kubelet.
func (b *builder) issueNode(ca *pki.Authority, n int) error {
	name := fabric.NodeName(n)
	subject := pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
	if err := ca.Issue(name, subject); err != nil {
		return err
	}
	subject.Names, subject.Addrs = []string{name}, fabric.Addrs(b.plan.Node(n))
	if err := ca.Issue("kubelet-"+name, subject); err != nil {
		return err
	}
	return ca.Kubeconfig(controlplane.Kubeconfig(b.pki(), name), name, b.plan.APIServer())
}

// start starts a process of the lab and records it at once, so that Down finds it in any case.
func (b *builder) start(name, namespace string, cmd *exec.Cmd) error {
	return b.fabric().Do(namespace, func() error {
		r, err := process.Start(name, filepath.Join(b.logs(), name+".log"), cmd)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.state.replace(r)
		return b.save(b.state)
	})
}

// end removes a process from the lab's state and ends it.
func (b *builder) end(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.state.process(name)
	b.state.forget(name)
	return errors.Join(r.Terminate(), b.save(b.state))
}

// process returns the record of a process of the lab.
func (b *builder) process(name string) process.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.process(name)
}

// dead names the processes of the lab that should run and do not.
func (b *builder) dead() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.dead()
}

func (b *builder) startControlPlane() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	dir := b.path("control-plane")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create control plane directory: %w", err)
	}
	config := controlplane.Config{
		Dir: dir, PKI: b.pki(),
		Address: b.plan.ControlPlane()[0].Addr(), Port: fabric.APIPort,
		Pods: b.plan.Pods(), Services: b.plan.Services(),
		Metrics: b.MetricsServer,
	}
	if config.Published, err = b.published(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("encode control plane: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		return fmt.Errorf("write control plane: %w", err)
	}
	sockets, err := b.ports.files()
	if err != nil {
		return err
	}
	defer closeAll(sockets)
	cmd := exec.Command(exe, "child", ChildControlPlane, dir)
	cmd.ExtraFiles = sockets
	return b.start(controlPlane, fabric.ControlPlane, cmd)
}

// subnetLabel holds the number of a node's subnet, in labs with two subnets.
const subnetLabel = "lab.fairway.net/subnet"

// nodeLabels returns the labels with which a node registers.
func (b *builder) nodeLabels(n int) string {
	if !b.plan.TwoSubnets {
		return ""
	}
	return fmt.Sprintf("%s=%d", subnetLabel, b.plan.Subnet(n))
}

func (b *builder) startNode(n int) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	name := fabric.NodeName(n)
	config := node.Config{
		Name: name, Dir: b.nodeDir(name), Logs: b.logs(), Cgroup: b.cgroup() + "/" + name,
		Addresses:  fabric.Addrs(b.plan.Node(n)),
		Kubeconfig: controlplane.Kubeconfig(b.pki(), name),
		PKI:        b.pki(),
		DNS:        b.plan.DNS(),
		Upstream:   b.plan.Gateway()[0].Addr(),
		Labels:     b.nodeLabels(n),
	}
	if err := config.Save(); err != nil {
		return err
	}
	if err := config.Fill(b.store()); err != nil {
		return err
	}
	cmd := exec.Command(exe, "child", ChildInit, config.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
		// Not a clone flag: the runtime makes an unshared mount namespace
		// This is not a clone flag. The runtime makes an unshared mount namespace private, so the node's mounts do not
		// appear on the machine.
		Unshareflags: unix.CLONE_NEWNS,
	}
	return b.start(name, name, cmd)
}
