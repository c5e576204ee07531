package manifest

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// granted lists what a component gives the agent: settings that differ from the base, writable directories and files of
// the node, and a capability.
type granted struct {
	settings   map[string]string
	host       []string
	capability string
}

// image is a deploy/image/kustomization.yaml as `make image` writes it.
const image = `apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images: [{name: ghcr.io/fairway-net/fairway, newTag: v1-0123456789ab}]
`

const (
	procSys   = "/proc/sys/net"
	lockFile  = "/run/xtables.lock"
	bpffs     = "/sys/fs/bpf"
	cgroups   = "/sys/fs/cgroup"
	cniBin    = "/opt/cni/bin"
	cniConf   = "/etc/cni/net.d"
	cniState  = "/run/fairway/cni"
	bgpDir    = "/run/fairway/bgp"
	policyDir = "/run/fairway/policy"
)

var componentTests = []struct {
	components string
	want       granted
}{
	{"", granted{}},
	{"userspace", granted{map[string]string{"PROXY_MODE": "userspace"}, nil, "NET_BIND_SERVICE"}},
	{"iptables", granted{map[string]string{"PROXY_MODE": "iptables"}, []string{lockFile}, ""}},
	{"ipvs", granted{map[string]string{"PROXY_MODE": "ipvs"}, []string{procSys}, ""}},
	{"ebpf", granted{map[string]string{"PROXY_MODE": "ebpf"}, []string{bpffs, cgroups}, "BPF PERFMON"}},
	{"auto", granted{map[string]string{"PROXY_MODE": "auto"}, []string{procSys, lockFile}, "NET_BIND_SERVICE"}},
	{"replace-kube-proxy", granted{map[string]string{"REPLACE_KUBE_PROXY": "true"}, []string{lockFile}, ""}},
	{"conntrack", granted{map[string]string{"--conntrack-max-per-core": "32768", "--conntrack-tcp-timeout-established": "24h", "--conntrack-tcp-timeout-close-wait": "1h"}, []string{procSys}, ""}},
	{"pod-network", granted{map[string]string{"POD_NETWORK": "routes"}, []string{cniConf, cniBin, procSys, bgpDir, cniState}, "NET_BIND_SERVICE"}},
	{"egress", granted{map[string]string{"EGRESS_ADDRESSES": "true"}, nil, ""}},
	{"network-policy", granted{map[string]string{"NETWORK_POLICY": "true"}, []string{policyDir}, ""}},
	{"pod-network iptables replace-kube-proxy conntrack", granted{map[string]string{
		"POD_NETWORK": "routes", "PROXY_MODE": "iptables", "REPLACE_KUBE_PROXY": "true",
		"--conntrack-max-per-core": "32768", "--conntrack-tcp-timeout-established": "24h", "--conntrack-tcp-timeout-close-wait": "1h",
	}, []string{cniConf, cniBin, procSys, bgpDir, cniState, lockFile}, "NET_BIND_SERVICE"}},
}

// TestComponents: the agent has exactly the rights that its mode and the pod network need. In the base it has two
// capabilities and none of the node's files. Its container is never privileged.
func TestComponents(t *testing.T) {
	base := agentWith(t, "")
	for _, c := range componentTests {
		t.Run(strings.ReplaceAll(c.components, " ", "+"), func(t *testing.T) {
			a := agentWith(t, c.components)
			have := granted{settings: map[string]string{}}
			for key, value := range a.settings {
				if base.settings[key] != value {
					have.settings[key] = value
				}
			}
			have.host = a.host(t)
			if !maps.Equal(have.settings, c.want.settings) || !slices.Equal(have.host, c.want.host) {
				t.Errorf("the agent has\n%+v\nwant\n%+v", have, c.want)
			}
			a.checkPrivileges(t, c.want.capability)
		})
	}
}

// an agent is the DaemonSet's pod, with its settings from the ConfigMap and its flags.
type agent struct {
	settings map[string]string
	pod      corev1.PodSpec
}

func agentWith(t *testing.T, components string) agent {
	t.Helper()
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deploy]\ncomponents:\n"
	for c := range strings.FieldsSeq(components) {
		text += "- deploy/components/" + c + "\n"
	}
	objects, err := Build(t.TempDir(), "../../deploy", text, image)
	if err != nil {
		t.Fatal(err)
	}
	a := agent{settings: map[string]string{}}
	for _, o := range objects {
		if o.GetName() != "fairway-agent" {
			continue
		}
		switch o.GetKind() {
		case "ConfigMap":
			var c corev1.ConfigMap
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &c)
			maps.Copy(a.settings, c.Data)
		case "DaemonSet":
			var d appsv1.DaemonSet
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d)
			a.pod = d.Spec.Template.Spec
			for _, arg := range a.pod.Containers[0].Command { // the last one counts
				flag, value, _ := strings.Cut(arg, "=")
				a.settings[flag] = value
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// TestImagesOfComponents: an overlay as in deploy/README.md, which names only components, sets the image's tag in every
// container.
func TestImagesOfComponents(t *testing.T) {
	dirs, err := filepath.Glob("../../deploy/components/*")
	if err != nil || len(dirs) < 10 {
		t.Fatalf("found %d components: %v", len(dirs), err)
	}
	for _, dir := range dirs {
		text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deploy]\ncomponents: [deploy/components/" + filepath.Base(dir) + "]\n"
		objects, err := Build(t.TempDir(), "../../deploy", text, image)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
		for _, o := range objects {
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			for _, c := range containers {
				if is := c.(map[string]any)["image"]; is != "ghcr.io/fairway-net/fairway:v1-0123456789ab" {
					t.Errorf("%s: %s %s has the image %v", filepath.Base(dir), o.GetKind(), o.GetName(), is)
				}
			}
		}
	}
}

// host returns the node's paths in the pod's volumes, and checks that each is mounted.
func (a agent) host(t *testing.T) (paths []string) {
	t.Helper()
	for _, v := range a.pod.Volumes {
		named := func(m corev1.VolumeMount) bool { return m.Name == v.Name }
		if !slices.ContainsFunc(a.pod.Containers[0].VolumeMounts, named) {
			t.Errorf("volume %s is not mounted", v.Name)
		}
		if v.HostPath != nil {
			paths = append(paths, v.HostPath.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

func (a agent) checkPrivileges(t *testing.T, capability string) {
	t.Helper()
	if len(a.pod.Containers) != 1 || len(a.pod.InitContainers) != 0 {
		t.Fatalf("%d containers, %d before them; want one", len(a.pod.Containers), len(a.pod.InitContainers))
	}
	c := a.pod.Containers[0]
	if want := "ghcr.io/fairway-net/fairway:v1-0123456789ab"; c.Image != want || c.ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("it runs %s (%s), want %s", c.Image, c.ImagePullPolicy, want)
	}
	s := c.SecurityContext
	have := fmt.Sprintln(*s.Privileged, *s.AllowPrivilegeEscalation, *s.ReadOnlyRootFilesystem, s.Capabilities.Drop, s.Capabilities.Add, s.SeccompProfile.Type)
	add := append([]string{"NET_ADMIN", "NET_RAW"}, strings.Fields(capability)...)
	if want := fmt.Sprintln(false, false, true, "[ALL]", add, "RuntimeDefault"); have != want {
		t.Errorf("privileged, escalation, read-only root, capabilities, seccomp: %s, want %s", have, want)
	}
	if a.pod.HostPID || a.pod.HostIPC || !a.pod.HostNetwork {
		t.Error("it shares the network with the node, and nothing else")
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() {
		t.Error("its memory has no limit or no request")
	}
}
