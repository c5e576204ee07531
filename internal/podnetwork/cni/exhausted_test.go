package cni

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// TestExhausted: with the podCIDR full ADD says so in words of a user, takes no address of the other family, and the first
// address that a pod gives back is the next pod's.
func TestExhausted(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "fd00:10:244:1::/64", "10.244.1.0/29")
	var pods []*pod
	for range 6 { // .1 to .6: nothing is kept for a gateway
		p := newPod(t)
		if _, err := n.add(list, p); err != nil {
			break
		}
		pods = append(pods, p)
	}
	if len(pods) < 5 {
		t.Fatalf("%d pods have an address of a /29", len(pods))
	}
	full := n.left()
	late := newPod(t)
	_, err := n.add(list, late)
	wantCode(t, err, types.ErrTryAgainLater, "10.244.1.0/29: all of its addresses are taken")
	if got := n.left(); got != full {
		t.Errorf("left behind:\n%swant:\n%s", got, full)
	}
	if err := n.del(list, pods[2]); err != nil {
		t.Fatal(err)
	}
	n.mustAdd(list, late)
	if late.addrs[1] != pods[2].addrs[1] {
		t.Errorf("the next pod has %v, free was %v", late.addrs, pods[2].addrs)
	}
}

// TestRenumbered: the node gets another podCIDR while pods come. Each has addresses of the one that its ADD was called with, and
// those of before are deleted, and collected, by a configuration that does not know their podCIDR.
func TestRenumbered(t *testing.T) {
	n := newNode(t)
	before := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	after := n.list("1.1.0", "fairway", "10.244.9.0/24", "fd00:10:244:9::/64")
	pods, errs := make([]*pod, 12), make([]error, 12)
	var group sync.WaitGroup
	for i := range pods {
		pods[i] = newPod(t)
		list := before
		if i%2 == 1 {
			list = after
		}
		group.Go(func() { _, errs[i] = n.add(list, pods[i]) })
	}
	group.Wait()
	for i, p := range pods {
		want := netip.MustParsePrefix([]string{"10.244.1.0/24", "10.244.9.0/24"}[i%2])
		if errs[i] != nil || !want.Contains(p.addrs[0]) {
			t.Fatalf("ADD %d: %v, %v", i, p.addrs, errs[i])
		}
		n.run("ping -c1 -W30 " + p.addrs[0].String())
	}
	for _, p := range pods[4:] {
		if err := n.del(after, p); err != nil {
			t.Error(err)
		}
	}
	fresh := libcni.NewCNIConfigWithCacheDir(n.runtime.Path, t.TempDir(), nil) // without a memory, or libcni would call DEL
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: pods[2].rt.ContainerID, IfName: "eth0"}}}
	if err := n.do(func() error { return fresh.GCNetworkList(context.Background(), after, valid) }); err != nil {
		t.Fatal(err)
	}
	if left := n.left(); strings.Count(left, "10.244.") != 2 || !strings.Contains(left, pods[2].addrs[0].String()) {
		t.Errorf("after GC:\n%s", left)
	}
	n.run("ping -c1 -W30 " + pods[2].addrs[0].String())
	if err := n.del(after, pods[2]); err != nil || n.left() != "" {
		t.Errorf("%v, left behind:\n%s", err, n.left())
	}
}
