package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// command calls the plugin directly, for input that libcni rejects.
func (n *node) command(verb, stdin string, p *pod) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.runtime.Path[0], PluginName))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_PATH="+n.runtime.Path[0])
	if p != nil {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+p.rt.ContainerID, "CNI_IFNAME="+p.rt.IfName, "CNI_NETNS="+p.rt.NetNS)
	}
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

func (n *node) call(verb, stdin string, p *pod) (stdout string, err error) {
	n.t.Helper()
	var out bytes.Buffer
	runErr := n.do(func() error {
		cmd := n.command(verb, stdin, p)
		cmd.Stdout = &out
		return cmd.Run()
	})
	if runErr == nil {
		return out.String(), nil
	}
	failure := &types.Error{}
	if err := json.Unmarshal(out.Bytes(), failure); err != nil {
		n.t.Fatalf("%s answered %q: %v", verb, out.String(), runErr)
	}
	return "", failure
}

func TestOldVersions(t *testing.T) {
	n := newNode(t)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			list := n.list(version, "fairway", "10.244.1.0/24")
			p := newPod(t)
			n.mustAdd(list, p)
			if version != "0.3.1" { // CHECK came with 0.4.0
				if err := n.check(list, p); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			if err := n.del(list, p); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
	out, err := n.call("VERSION", `{"cniVersion":"1.1.0"}`, nil)
	if err != nil || !strings.Contains(out, `"supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]`) {
		t.Errorf("VERSION: %s, %v", out, err)
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	status := func(cidrs ...string) error {
		return n.do(func() error {
			return n.runtime.GetStatusNetworkList(context.Background(), n.list("1.1.0", "fairway", cidrs...))
		})
	}
	if err := status("10.244.1.0/24", "fd00:10:244:1::/64"); err != nil {
		t.Errorf("a ready node: %v", err)
	}
	wantCode(t, status(), types.ErrPluginNotAvailable, "no IP ranges")
	n.sysctl("ipv6/conf/all/forwarding", "0")
	if err := status("10.244.1.0/24"); err != nil {
		t.Errorf("IPv4 only without IPv6 forwarding: %v", err)
	}
	wantCode(t, status("10.244.1.0/24", "fd00:10:244:1::/64"), types.ErrLimitedConnectivity, "does not forward")
}

func TestBadCalls(t *testing.T) {
	n := newNode(t)
	good := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/30"}]]}}`, n.stateDir)
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s is not in the configuration", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	hostNet := newPod(t)
	hostNet.rt.NetNS = n.path()
	noNet := newPod(t)
	noNet.rt.NetNS = "/nowhere"
	for _, test := range []struct {
		name, verb, stdin string
		pod               *pod
		code              uint
		want              string
	}{
		{"not JSON", "ADD", "{", newPod(t), types.ErrDecodingFailure, ""},
		{"unknown version", "ADD", replace("1.1.0", "9.0.0"), newPod(t), types.ErrIncompatibleCNIVersion, ""},
		{"foreign ipam", "ADD", replace("host-local", "dhcp"), newPod(t), types.ErrUnsupportedField, `use "host-local"`},
		{"no podCIDR", "ADD", replace(`[{"subnet":"10.244.1.0/30"}]`, ""), newPod(t), types.ErrInvalidNetworkConfig, "podCIDRs"},
		{"podCIDR too small", "ADD", replace("/30", "/32"), newPod(t), types.ErrInvalidNetworkConfig, "too small"},
		{"negative MTU", "ADD", replace(`"ipam"`, `"mtu":-1,"ipam"`), newPod(t), types.ErrInvalidNetworkConfig, "mtu -1"},
		{"long network name", "ADD", replace(`"fairway"`, `"`+strings.Repeat("x", 101)+`"`), newPod(t), types.ErrInvalidNetworkConfig, "shorter name"},
		{"not first in the list", "ADD", replace(`"ipam"`, `"prevResult":{"cniVersion":"1.1.0"},"ipam"`), newPod(t), types.ErrInvalidNetworkConfig, "first plugin"},
		{"the node's namespace", "ADD", good, hostNet, types.ErrInvalidNetNS, "node's own network namespace"},
		{"no namespace", "ADD", good, noNet, types.ErrInvalidNetNS, "/nowhere"},
		{"CHECK without prevResult", "CHECK", good, newPod(t), types.ErrInvalidNetworkConfig, "prevResult"},
		{"GC without a list", "GC", good, nil, types.ErrInvalidNetworkConfig, "valid-attachments"},
		{"unknown verb", "MAKE", good, nil, types.ErrInvalidEnvironmentVariables, "MAKE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := n.call(test.verb, test.stdin, test.pod)
			wantCode(t, err, test.code, test.want)
			if left := n.left(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
	t.Run("no address left", func(t *testing.T) { // a /30 has one beside host-local's gateway
		if _, err := n.call("ADD", good, newPod(t)); err != nil {
			t.Fatal(err)
		}
		_, err := n.call("ADD", good, newPod(t))
		wantCode(t, err, types.ErrTryAgainLater, "larger podCIDR")
	})
}

// TestRequestedAddress: CNI_ARGS and capabilities work as with host-local.
func TestRequestedAddress(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	p := newPod(t)
	p.rt.Args = append(p.rt.Args, [2]string{"IP", "10.244.1.99"})
	n.mustAdd(list, p)
	if p.addrs[0].String() != "10.244.1.99" {
		t.Errorf("asked for 10.244.1.99, got %v", p.addrs)
	}
	q := newPod(t)
	q.rt.Args = append(q.rt.Args, [2]string{"IP", "10.9.9.9"})
	before := n.left()
	_, err := n.add(list, q)
	wantCode(t, err, types.ErrInvalidNetworkConfig, "10.9.9.9")
	if after := n.left(); after != before {
		t.Errorf("left behind:\n%s", after)
	}
}

// TestDelWithoutState must not create the store's directory.
func TestDelWithoutState(t *testing.T) {
	n := newNode(t)
	if err := n.del(n.list("1.1.0", "fairway", "10.244.1.0/24"), newPod(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(n.stateDir); !os.IsNotExist(err) {
		t.Errorf("DEL made %s (%v)", n.stateDir, err)
	}
}

// TestLoopback is the second plugin of this program.
func TestLoopback(t *testing.T) {
	n := newNode(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(n.runtime.Path[0], LoopbackName)); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(t)
	p.run("ip link set lo down")
	p.rt.IfName = "lo"
	n.mustAdd(list, p)
	if out := p.run("ping -c1 -W1 127.0.0.1; ip -br addr show lo"); !strings.Contains(out, "127.0.0.1/8") || !strings.Contains(out, "::1/128") {
		t.Errorf("lo is not usable: %s", out)
	}
	if err := n.del(list, p); err != nil {
		t.Errorf("DEL: %v", err)
	}
}
