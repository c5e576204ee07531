// Package cluster has the commands that change or read a whole cluster through its API server: install, upgrade,
// rollback, uninstall, drain, status. They parse flags and call the packages of internal/operate.
package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube/objects"
	"github.com/fairway-net/fairway/internal/operate/install"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// A target is the cluster of a command, with the options of the change.
type target struct {
	kubeconfig, context string
	dryRun, force       bool
	timeout             time.Duration
}

// newTarget adds the flags that install, upgrade, rollback and uninstall share.
func newTarget(fs *pflag.FlagSet) *target {
	t := &target{}
	fs.StringVar(&t.kubeconfig, "kubeconfig", "", "`file` that names the cluster (default $KUBECONFIG, or ~/.kube/config)")
	fs.StringVar(&t.context, "context", "", "`name` of the context in it (default its current one)")
	fs.BoolVar(&t.dryRun, "dry-run", false, "show what would be done to each object, and change nothing")
	fs.BoolVar(&t.force, "force", false, "also if the change ends something that works now")
	fs.DurationVar(&t.timeout, "timeout", 5*time.Minute, "how long to wait until all runs")
	return t
}

func (t *target) installer(e command.Env) (*install.Installer, error) {
	client, err := objects.Connect(t.kubeconfig, t.context, e.UserAgent(""))
	if err != nil {
		return nil, err
	}
	return &install.Installer{
		API: client, Manifests: deploy.Files, Out: e.Stdout, Version: e.Version,
		DryRun: t.dryRun, Force: t.force, Timeout: t.timeout, Poll: 500 * time.Millisecond,
	}, nil
}

// newOptions adds the flags that install and upgrade share. The function that it returns reads them.
func newOptions(c *cobra.Command) func(version string) (install.Options, error) {
	o, fs := install.Options{}, c.Flags()
	fs.StringVar(&o.Image, "image", "", "`name:tag` or name@digest of Fairway's image (default that of this build)")
	fs.StringVar(&o.APIServer, "api-server", "", "`URL` of the API server as nodes reach it, not a ClusterIP (default: found)")
	fs.StringVar(&o.ClusterCIDR, "cluster-cidr", "", "`CIDRs` of the cluster's pods, separated by commas (default: found)")
	fs.StringVar(&o.ProxyMode, "proxy-mode", "", "`mode` of the Service proxy: nftables, iptables, ipvs, userspace, ebpf, auto, none (default nftables)")
	fs.StringVar(&o.ReplaceKubeProxy, "replace-kube-proxy", "", "`true` ends a kube-proxy and removes its rules, false leaves it (default: true if there is one)")
	fs.StringVar(&o.PodNetwork, "pod-network", "", "`none` beside another CNI plugin, or routes, vxlan, wireguard or bgp for Fairway's; its auto is --set POD_NETWORK=auto (default: routes if there is no other)")
	fs.StringVar(&o.DNS, "dns", "", "`fairway`: Fairway's DNS, in place of coredns; none: the cluster's (default: fairway if there is no coredns)")
	fs.StringVar(&o.RefuseExternal, "refuse-external-ips", "", "`true` ignores spec.externalIPs of Services, false serves them (default true)")
	fs.StringArrayVar(&o.Components, "component", nil, "add this `name` of deploy/components; may be repeated")
	fs.StringArrayVar(&o.Without, "without-component", nil, "leave the component `name` out that an earlier run added; may be repeated")
	set := fs.StringArray("set", nil, "`KEY=VALUE` of another setting of the ConfigMap fairway-agent (docs/settings.md); may be repeated; KEY= goes back to the default")
	if err := c.RegisterFlagCompletionFunc("set", completeSettings); err != nil {
		panic(err) // the flag does not exist
	}
	for flag, key := range map[string]string{"proxy-mode": "PROXY_MODE", "pod-network": "POD_NETWORK", "replace-kube-proxy": "REPLACE_KUBE_PROXY", "refuse-external-ips": "REFUSE_EXTERNAL_IPS"} {
		s, _ := settings.For(key)
		command.Complete(c, flag, s.Allowed()...)
	}
	command.Complete(c, "dns", "fairway", "none")
	return func(version string) (install.Options, error) {
		var err error
		if o.Set, err = settings.SplitPairs(*set); err != nil {
			return o, err
		}
		if o.Image == "" {
			o.Image = defaultImage(version) // an upgrade without one keeps the running image
		}
		return o, nil
	}
}

// completeSettings offers keys, and the values of a key.
func completeSettings(_ *cobra.Command, _ []string, given string) ([]cobra.Completion, cobra.ShellCompDirective) {
	key, _, withValue := strings.Cut(given, "=")
	var all []cobra.Completion
	if !withValue {
		for _, s := range settings.All {
			all = append(all, cobra.CompletionWithDesc(s.Key+"=", s.Meaning()))
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	if s, ok := settings.For(key); ok {
		for _, value := range s.Allowed() {
			all = append(all, key+"="+value)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// NewInstall builds `fairway install`.
func NewInstall(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "install",
		SuggestFor: []string{"init", "apply", "deploy"},
		Short:      "Install Fairway on the cluster that kubeconfig names",
		Long: `Install Fairway on the cluster that kubeconfig names.

It finds out where the API server is, the addresses of pods and Services, and whether a kube-proxy, a CNI plugin and a
cluster DNS are there; a flag says it otherwise. Fairway takes over from kube-proxy without losing a connection;
kube-proxy's DaemonSet is kept for the way back. fairway uninstall undoes all of it.`,
		Example: `  fairway install --dry-run
  fairway install
  fairway install --dns fairway --proxy-mode iptables`,
		Args: cobra.NoArgs,
	}
	t, options := newTarget(c.Flags()), newOptions(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		o, err := options(e.Version)
		if err != nil {
			return err
		}
		i, err := t.installer(e)
		if err != nil {
			return err
		}
		return i.Install(c.Context(), o)
	}
	return c
}

// defaultImage returns the image of this build: a release's own image, else the image that `make image` named next to
// this program. It returns "" if there is none.
func defaultImage(version string) string {
	const name = "ghcr.io/fairway-net/fairway"
	if !strings.Contains(version, "-") {
		return name + ":" + version
	}
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "fairway-image.yaml"))
	if err != nil {
		return ""
	}
	var component struct {
		Images []struct{ Name, NewTag string } `json:"images"`
	}
	if yaml.Unmarshal(text, &component) != nil || len(component.Images) != 1 {
		return ""
	}
	return fmt.Sprintf("%s:%s", component.Images[0].Name, component.Images[0].NewTag)
}
