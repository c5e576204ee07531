package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A rig is a network with a datapath in its first node, and the places that scenarios name.
type rig struct {
	t     testing.TB
	suite suite
	net   *testnet.Net
	node  *testnet.Host // the node of the datapath
	peer  *testnet.Host
	hosts map[netip.Addr]*testnet.Host
	dp    Datapath
	flows map[flow.Flow]bool // all UDP flows that clients may have had
	turns bool               // endpoints of a Service take turns

	cgroup string // the node's, if the datapath is Placed
}

// newRig builds the network, with a server on each endpoint. Endpoints that no packet may reach have a server too,
// because a wrong answer is a better finding than silence. Endpoints of the node called name are on r.node, all others
// on r.peer.
func newRig(t testing.TB, s suite, name string, endpoints map[service.Key]string) *rig {
	t.Helper()
	n := testnet.New(t)
	n.SendEveryICMPError() // many clients call UDP ports that are refused
	return newRigOn(n, t, s, name, endpoints)
}

// newRigOn is newRig for a network without nodes.
func newRigOn(n *testnet.Net, t testing.TB, s suite, name string, endpoints map[service.Key]string) *rig {
	t.Helper()
	r := &rig{t: t, suite: s, net: n, node: n.Node("node-1"), peer: n.Node("node-2"), hosts: map[netip.Addr]*testnet.Host{}}
	w := &scenario.World
	r.node.AddAddr(w.Extra.V4)
	r.node.AddAddr(w.Extra.V6)
	for _, h := range []*testnet.Host{
		r.node, r.peer, n.Outside,
		n.Pod(r.node, "pod", w.Pod.V4, w.Pod.V6),
		n.Pod(r.peer, "pod-remote", w.PodRemote.V4, w.PodRemote.V6),
	} {
		for _, a := range h.Addrs {
			r.hosts[a] = h
		}
	}
	for _, place := range scenario.Places() {
		if h := r.hosts[place.V4]; h == nil || h != r.hosts[place.V6] {
			t.Fatalf("the network has no %s at %v and %v", place.Name, place.V4, place.V6)
		}
	}
	for _, p := range w.Routed {
		if err := n.Route(p, r.node); err != nil {
			t.Fatal(err)
		}
	}
	for k, on := range endpoints {
		r.serve(k, on == name)
	}
	r.reopen()
	t.Cleanup(func() { r.dp.Close() })
	return r
}

// serve answers on an endpoint. Each address has its own pod.
func (r *rig) serve(k service.Key, local bool) {
	addr := k.Addr.Addr()
	h := r.hosts[addr]
	if h == nil {
		on := r.peer
		if local {
			on = r.node
		}
		h = r.net.Pod(on, fmt.Sprintf("pod-%v", addr), addr)
		r.hosts[addr] = h
	}
	h.Serve(network(k.Proto), k.Addr)
}

// network returns testnet's name of a protocol.
func network(p api.Proto) string { return strings.ToLower(p.String()) }

// reopen replaces the datapath by a new instance, like a restart of the agent.
func (r *rig) reopen() {
	if r.dp != nil {
		r.dp.Close()
	}
	r.dp = r.place(r.suite.open(r.t))
}

// place tells a datapath its cgroup, if it works on cgroups.
func (r *rig) place(dp Datapath) Datapath {
	if p, ok := dp.(Placed); ok {
		p.Place(r.cgroups())
	}
	return dp
}

// A Placed datapath works on the sockets below a cgroup. Place is called first.
type Placed interface{ Place(cgroup string) }

// cgroups puts the node and its pods into cgroups, as a kubelet does, and returns the node's.
func (r *rig) cgroups() string {
	if r.cgroup != "" {
		return r.cgroup
	}
	r.cgroup = r.node.Cgroup()
	pods := testnet.MakeCgroupNamed(r.t, r.cgroup, "kubepods")
	for _, h := range r.hosts {
		if h.Node() == r.node {
			h.CgroupIn(pods)
		}
	}
	return r.cgroup
}

// replace is reopen while connections are open, if the datapath supports that.
func (r *rig) replace() {
	if r.suite.unsupported["restart"] == "" {
		r.reopen()
	}
}

func (r *rig) sync(want *service.Table) error {
	_, err := r.syncStats(want)
	return err
}

func (r *rig) syncStats(want *service.Table) (stats datapath.Stats, err error) {
	r.noteFlows(want)
	err = r.node.Do(func() error {
		stats, err = r.dp.Sync(context.Background(), want)
		return err
	})
	return stats, err
}

// noteFlows records the flows that clients may have from now on, and whether endpoints take turns.
func (r *rig) noteFlows(t *service.Table) {
	if r.flows == nil {
		r.flows = map[flow.Flow]bool{}
	}
	r.turns = false
	for f := range t.Frontends() {
		r.turns = r.turns || f.Balance == service.RoundRobin
		if f.Proto != api.UDP {
			continue
		}
		for _, route := range [...]*service.Route{f.Internal, f.External} {
			for _, e := range route.Endpoints {
				r.flows[flow.Flow{Proto: api.UDP, Frontend: f.Addr, Endpoint: e.Addr}] = true
			}
		}
	}
}

// forget deletes the node's UDP flows. Otherwise the kernel would send a later client with the port of an earlier one
// to the earlier endpoint. Package internal/flow/conntrack is responsible for that.
func (r *rig) forget() error {
	if _, err := r.dp.EndFlows(context.Background(), slices.Collect(maps.Keys(r.flows))); err != nil {
		return fmt.Errorf("end UDP flows: %w", err)
	}
	return r.node.Do(func() error {
		udp := &netlink.ConntrackFilter{}
		if err := udp.AddProtocol(17); err != nil {
			return err
		}
		for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, udp); err != nil {
				return fmt.Errorf("delete UDP flows: %w", err)
			}
		}
		return nil
	})
}
