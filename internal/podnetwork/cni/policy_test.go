package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
)

// withPolicy is list with NetworkPolicies on.
func (n *node) withPolicy(socket string) *libcni.NetworkConfigList {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":"fairway","plugins":[{"type":"fairway-cni","policySocket":%q,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}]]}}]}`,
		socket, n.stateDir)))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// A policyAgent answers the plugin as the test says.
type policyAgent struct {
	net.Listener
	done   sync.WaitGroup
	answer func(isolate.Request) (text string, answered bool)
}

func newPolicyAgent(t *testing.T, socket string, answer func(isolate.Request) (string, bool)) *policyAgent {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a := &policyAgent{Listener: l, answer: answer}
	a.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var r isolate.Request
			_ = json.NewDecoder(c).Decode(&r)
			if text, answered := a.answer(r); answered {
				_ = json.NewEncoder(c).Encode(isolate.Answer{Error: text})
			}
			_ = c.Close()
		}
	})
	return a
}

func (a *policyAgent) end() {
	_ = a.Close()
	a.done.Wait()
}

// No pod starts without the agent's word that it is isolated: ADD fails with what kubelet shows
// and tries again, and leaves nothing behind. The runtime's DEL succeeds.
func TestPolicyNotConfirmed(t *testing.T) {
	n := newNode(t)
	socket := filepath.Join(t.TempDir(), "policy.sock")
	list := n.withPolicy(socket)
	refuses := func(when, want string) {
		t.Helper()
		p := newPod(t)
		_, err := n.add(list, p)
		wantCode(t, err, types.ErrTryAgainLater, want)
		if left := n.left(); left != "" {
			t.Errorf("%s, a failed ADD leaves %q", when, left)
		}
		if out := p.run("ip -o link | grep -v LOOPBACK || true"); strings.Contains(out, "eth0") {
			t.Errorf("%s, the pod has a link: %s", when, out)
		}
		if err := n.del(list, p); err != nil {
			t.Errorf("%s, DEL: %v", when, err)
		}
	}
	refuses("without an agent", "is the fairway agent running on this node?")
	a := newPolicyAgent(t, socket, func(isolate.Request) (string, bool) { return "", false })
	refuses("with an agent that is killed before it answers", "read the agent's answer")
	a.end()
	a = newPolicyAgent(t, socket, func(isolate.Request) (string, bool) { return "the kernel was not written in time", true })
	refuses("with an agent that cannot write", "the agent says: the kernel was not written in time")
	a.end()
}

// The agent is asked before the pod has a link, and told of the end when it has none any more.
func TestPolicyOrder(t *testing.T) {
	n := newNode(t)
	socket := filepath.Join(t.TempDir(), "policy.sock")
	list, p := n.withPolicy(socket), newPod(t)
	p.rt.Args = append(p.rt.Args, [2]string{"K8S_POD_UID", "uid-1"})
	var asked []isolate.Request
	var links []string
	a := newPolicyAgent(t, socket, func(r isolate.Request) (string, bool) {
		out, err := n.try("ip -br link show type veth | grep ^fw", "")
		if err == nil {
			links = append(links, out)
		}
		asked = append(asked, r)
		return "", true
	})
	n.mustAdd(list, p)
	if err := n.del(list, p); err != nil {
		t.Fatal(err)
	}
	a.end()
	want := isolate.Request{Command: isolate.Add, Pod: "default/" + p.rt.Args[2][1], UID: "uid-1", Container: p.rt.ContainerID, Addrs: p.addrs}
	if len(asked) != 2 || asked[0].Command != want.Command || asked[0].Pod != want.Pod || asked[0].UID != want.UID ||
		asked[0].Container != want.Container || !slices.Equal(asked[0].Addrs, want.Addrs) {
		t.Errorf("the agent was asked %+v, first want %+v", asked, want)
	} else if asked[1].Command != isolate.Delete || asked[1].Container != p.rt.ContainerID {
		t.Errorf("the agent was asked %+v at last", asked[1])
	}
	if len(links) > 0 {
		t.Errorf("when the agent was asked the pod had a link: %q", links)
	}
}

// GC tells the agent which containers are gone, once each, before their addresses are free, and goes
// on without an agent.
func TestPolicyGC(t *testing.T) {
	n := newNode(t)
	socket := filepath.Join(t.TempDir(), "policy.sock")
	list := n.withPolicy(socket)
	var asked []string
	refuse := false
	a := newPolicyAgent(t, socket, func(r isolate.Request) (string, bool) {
		asked = append(asked, r.Command+" "+r.Container)
		return "", !refuse || r.Command != isolate.Delete
	})
	gc := func(valid *libcni.GCArgs) error {
		fresh := libcni.NewCNIConfigWithCacheDir(n.runtime.Path, t.TempDir(), nil) // one that knows of none sends no DEL
		return n.do(func() error { return fresh.GCNetworkList(t.Context(), list, valid) })
	}
	pods := []*pod{newPod(t), newPod(t), newPod(t)}
	for _, p := range pods {
		n.mustAdd(list, p)
	}
	asked = nil
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: pods[0].rt.ContainerID, IfName: pods[0].rt.IfName}}}
	if err := gc(valid); err != nil {
		t.Fatal(err)
	}
	slices.Sort(asked)
	want := []string{isolate.Delete + " " + pods[1].rt.ContainerID, isolate.Delete + " " + pods[2].rt.ContainerID}
	if slices.Sort(want); !slices.Equal(asked, want) {
		t.Errorf("GC told the agent %q, want %q", asked, want)
	}
	for _, p := range pods[1:] {
		n.mustAdd(list, p)
	}
	asked, refuse = nil, true
	if err := gc(&libcni.GCArgs{}); err != nil || len(asked) != 1 {
		t.Errorf("with an agent that does not answer: %v, asked %q", err, asked)
	}
	a.end()
	if left := n.left(); left != "" {
		t.Errorf("GC leaves %q", left)
	}
}
