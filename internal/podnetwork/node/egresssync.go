package node

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

//go:embed egress.nft
var egressRules string

const egressComment = "egress.nft" // of each rule

// egressProgram returns the program of the table. within adds the chains for packets inside of WireGuard.
func egressProgram(within bool) *nft.Ruleset {
	return &nft.Ruleset{Source: egressRules, Data: map[string]any{
		"Within": within, "Egress": tunnel.EgressLink, "WireGuard": tunnel.WireGuardLink, "Port": numbers.PortVXLAN, "SourceCheck": numbers.HookSourceCheck, "Raw": numbers.HookRaw, "Answer": markAnswer,
		"Network": fmt.Sprintf("@th,96,32 & 0xffffff00 == %#x", numbers.VNIEgress<<8),
		"Mark":    numbers.HookEgressMark, "Priority": numbers.HookEgress, "Unmark": numbers.HookEgressUnmark, "Mask": numbers.MaskEgress, "Here": markHere, "Nobody": markNobody,
		"VXLAN": tunnel.VXLANLink, "Pods": podsTable, "Comment": egressComment, "IPVS4": numbers.RangeIPVS4, "IPVS6": numbers.RangeIPVS6,
	}}
}

// egressKernel writes the table, the ip rules and the routes for pods with egress addresses.
type egressKernel struct {
	table *nft.Table
	watch *nft.Watch
	// synced is the state of the kernel after the last sync; nil: not known.
	synced elements
	inside []netip.Prefix
	within bool // the argument of egressProgram
}

func newEgressKernel() *egressKernel {
	t := nft.New(numbers.TableEgress)
	return &egressKernel{table: t, watch: t.Watch()}
}

// forget makes the next sync read the kernel.
func (k *egressKernel) forget() {
	k.synced = nil
	k.watch.Reset()
	k.table.Close()
}

// sync makes the kernel hold the plan. Ways come before their packets, and go after them. The rules about senders
// through the tunnel inside of WireGuard come before the tunnel.
func (k *egressKernel) sync(ctx context.Context, handle netlinksafe.Handle, p *plan.Plan) (failed error) {
	s := tunnel.NewVXLAN(handle, tunnel.EgressLink)
	if w := p.Egress.Within; w != nil {
		if link, err := tunnel.FindVXLAN(handle, tunnel.EgressLink); link == nil && err == nil {
			if err := k.syncWays(ctx, handle, p); err != nil {
				return err
			}
		}
		failed = s.Bring(w.Tunnel)
	}
	p.Egress.Bind(plan.WayWithin, s.Link)
	failed = errors.Join(failed, syncAnswers(handle, p.Egress.Within, s.Link))
	if err := k.syncWays(ctx, handle, p); err != nil {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, s.Tidy(p.Egress.Within.Wanted()))
}

// syncWays writes the routing tables, the ip rules and the nft table. A way without a link does not count.
func (k *egressKernel) syncWays(ctx context.Context, handle netlinksafe.Handle, p *plan.Plan) error {
	wanted := map[plan.EgressRoute]bool{}
	for _, r := range p.Egress.Via {
		if r.Link != 0 {
			wanted[r] = true
		}
	}
	slots := map[plan.EgressRoute]int{}
	for _, is4 := range []bool{true, false} {
		have, err := readWays(handle, is4)
		if err != nil {
			return err
		}
		ofFamily := map[plan.EgressRoute]bool{}
		for r := range wanted {
			if r.Is4 == is4 {
				ofFamily[r] = true
			}
		}
		assigned, without := assign(ofFamily, have)
		p.Problems = append(p.Problems, withoutTable(without)...)
		for r, slot := range assigned {
			if err := addWay(handle, slot, r, have[slot] == r); err != nil {
				return err
			}
			slots[r] = slot
		}
	}
	if err := k.syncTable(ctx, egressElements(p.Egress, slots), p.EgressInside(), p.Egress.Within != nil); err != nil {
		k.forget()
		return fmt.Errorf("load the rules of egress addresses: %w", err)
	}
	return tidyWays(handle, slots)
}

// remove removes all of these.
func (k *egressKernel) remove(ctx context.Context, handle netlinksafe.Handle) error {
	k.forget()
	return errors.Join(syncAnswers(handle, nil, 0), tunnel.RemoveVXLAN(handle, tunnel.EgressLink), k.table.Delete(ctx), tidyWays(handle, nil))
}

// planEgress adds the pods with egress addresses to the plan, once they are known. The rules of a previous agent stay for
// EmptyAfter if the API server lacks most of their pods: without the rules pods would leave with the node's address.
func (n *Network) planEgress(ctx context.Context, p *plan.Plan, c plan.State) error {
	if n.Egress == nil {
		return nil
	}
	pods, known := n.Egress.Pods()
	if !known {
		return nil
	}
	if n.egress.synced == nil { // the first plan, or the kernel is read again
		had, kept, err := n.egress.compare(ctx, pods)
		if err != nil {
			return err
		}
		if !n.brake.Believe(n.now(), had, kept) {
			p.Problems = append(p.Problems, plan.Problem{Reason: plan.ReasonEgressKept, Message: fmt.Sprintf(
				"%d of %d pods' addresses in the rules of egress addresses are unknown to the API server; the rules stay for %v [was it restored from a backup?]", had-kept, had, n.EmptyAfter)})
			return nil
		}
	}
	p.Egress = p.AddEgress(c, pods)
	return nil
}

// compare returns how many pods' addresses the kernel's rules have, and how many of them are in pods.
func (k *egressKernel) compare(ctx context.Context, pods map[netip.Addr]plan.EgressPod) (had, kept int, err error) {
	for _, set := range []string{"marks4", "marks6"} {
		err := k.table.Elements(ctx, set, func(e nft.Element) error {
			had++
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				if _, ok := pods[a]; ok {
					kept++
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // there is no table
			return 0, 0, err
		}
	}
	return had, kept, nil
}

// keepBehind keeps the elements of the sets vxlan-behind while the pods with egress addresses are not known.
func (n *Network) keepBehind(ctx context.Context, p *plan.Plan, want map[string][]netip.Prefix) error {
	if n.Egress == nil || p.Egress != nil {
		return nil
	}
	if ours, err := n.rules.loaded(ctx, n.Fragments); err != nil || !ours {
		return err
	}
	for _, set := range []string{"vxlan-behind4", "vxlan-behind6"} {
		had, err := n.rules.table.Prefixes(ctx, set)
		if err != nil {
			return err
		}
		want[set] = had
	}
	return nil
}

// syncEgress writes the part of the plan for pods with egress addresses, or removes it.
func (n *Network) syncEgress(ctx context.Context, handle netlinksafe.Handle, p *plan.Plan) error {
	switch {
	case p.Egress != nil:
		n.egressRemoved = false
		return n.egress.sync(ctx, handle, p)
	case n.Egress != nil || n.egressRemoved:
		return nil
	}
	err := n.egress.remove(ctx, handle)
	n.egressRemoved = err == nil
	return err
}

// egressElements returns the elements of the sets and maps.
func egressElements(e *plan.Egress, slots map[plan.EgressRoute]int) elements {
	all := elements{"marks4": {}, "marks6": {}, "sources4": {}, "sources6": {}}
	addWithin(e.Within, all)
	set := func(pod netip.Addr, mark uint32, source netip.Addr) {
		marks, sources := all["marks6"], all["sources6"]
		if pod.Is4() {
			marks, sources = all["marks4"], all["sources4"]
		}
		key := string(pod.AsSlice())
		marks[key] = string(binary.NativeEndian.AppendUint32(nil, mark))
		if source.IsValid() {
			sources[key] = string(source.AsSlice())
		}
	}
	for addr := range e.Addrs {
		set(addr, markNobody, netip.Addr{})
	}
	for _, pod := range e.Unroutable {
		set(pod, markNobody, netip.Addr{})
	}
	for pod, addr := range e.Here {
		set(pod, markHere, addr)
	}
	for pod, r := range e.Via {
		if slot, ok := slots[r]; ok {
			set(pod, gatewayMark(slot), pod)
		} else {
			set(pod, markNobody, netip.Addr{})
		}
	}
	return all
}

// syncTable makes the table hold want. Without pods with egress addresses there is no table.
func (k *egressKernel) syncTable(ctx context.Context, want elements, inside []netip.Prefix, within bool) error {
	if len(want["marks4"])+len(want["marks6"]) == 0 {
		k.forget()
		return k.table.Delete(ctx)
	}
	again := func(ctx context.Context) (bool, error) {
		return k.table.Altered(ctx, egressProgram(within), egressComment)
	}
	if k.synced != nil {
		change, _, err := k.watch.Look(ctx)
		if err != nil || change == nft.Nothing && k.within == within && reflect.DeepEqual(k.synced, want) && reflect.DeepEqual(k.inside, inside) {
			return err
		}
		again = func(context.Context) (bool, error) { return change == nft.Rules, nil }
	}
	err := k.watch.Keep(ctx, egressProgram(within), again, func(ctx context.Context) error { return k.fill(ctx, want, inside) })
	k.synced, k.inside, k.within = want, inside, within
	return err
}

// fill writes the elements that differ: first the source addresses, then the marks of the packets that get them.
func (k *egressKernel) fill(ctx context.Context, want elements, inside []netip.Prefix) error {
	var ws []nft.Write
	for _, set := range []string{"inside4", "inside6"} {
		have, err := k.table.Prefixes(ctx, set)
		if err != nil {
			return err
		}
		ws = append(ws, nft.ReplacePrefixes(set, set == "inside4", have, inside)...)
	}
	other, err := k.table.Differences(ctx, want, "ends4", "ends6", "partners4", "partners6", "answers4", "answers6", "sources4", "sources6", "marks4", "marks6")
	if err != nil {
		return err
	}
	ws = append(ws, other...)
	return k.table.Commit(ctx, nil, ws)
}

func familyOf(is4 bool) int {
	if is4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// readWays reads the routing tables of gateways, by slot.
func readWays(handle netlinksafe.Handle, is4 bool) (map[int]plan.EgressRoute, error) {
	routes, err := handle.RouteListFiltered(familyOf(is4), &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: cni.RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes to egress gateways: %w", err)
	}
	have := map[int]plan.EgressRoute{}
	for _, r := range routes {
		slot := r.Table - numbers.RouteTableEgress
		if slot < 0 || slot >= numbers.RouteTablesEgress {
			continue
		}
		via, _ := netip.AddrFromSlice(r.Gw)
		by := plan.WayRoutes
		if r.Flags&int(netlink.FLAG_ONLINK) != 0 {
			by = plan.WayVXLAN
		}
		if _, ok := have[slot]; via.IsValid() || !ok {
			have[slot] = plan.EgressRoute{Is4: is4, By: by, Via: via.Unmap(), Link: r.LinkIndex}
		}
	}
	return have, nil
}

// addWay adds the routes of a table, and the ip rule that leads marked packets to the table. If the route's link
// disappears, the second route refuses the packets. By the main table they would leave with the pod's own address.
func addWay(handle netlinksafe.Handle, slot int, r plan.EgressRoute, there bool) error {
	if !there {
		for _, route := range wayRoutes(slot, r) {
			if err := handle.RouteReplace(route); err != nil {
				return fmt.Errorf("set the route to an egress gateway: %w", err)
			}
		}
	}
	if err := handle.RuleAdd(markRule(gatewayMark(slot), numbers.RouteTableEgress+slot, r.Is4)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the ip rule to an egress gateway: %w [needs a kernel with policy routing]", err)
	}
	return nil
}

func wayRoutes(slot int, r plan.EgressRoute) []*netlink.Route {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if r.Is4 {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	way := kernelRoute(plan.Route{Dst: all, Via: r.Via, Link: r.Link, By: r.By})
	refuse := kernelRoute(plan.Route{Dst: all})
	way.Table, refuse.Table = numbers.RouteTableEgress+slot, numbers.RouteTableEgress+slot
	refuse.Priority = 1 << 30
	return []*netlink.Route{refuse, way}
}

// markRule returns the ip rule that leads packets with a mark to a table.
func markRule(mark uint32, table int, is4 bool) *netlink.Rule {
	mask := ^uint32(0)
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = familyOf(is4), numbers.RulePriorityEgress, table
	r.Mark, r.Mask = mark, &mask
	r.Protocol = cni.RouteProtocol
	return r
}

// tidyWays removes the ip rules and routes of all tables except those of slots.
func tidyWays(handle netlinksafe.Handle, slots map[plan.EgressRoute]int) error {
	var failed error
	for _, is4 := range []bool{true, false} {
		used := map[int]bool{}
		for r, slot := range slots {
			used[numbers.RouteTableEgress+slot] = used[numbers.RouteTableEgress+slot] || r.Is4 == is4
		}
		rules, err := handle.RuleListFiltered(familyOf(is4), &netlink.Rule{Priority: numbers.RulePriorityEgress}, netlink.RT_FILTER_PRIORITY)
		if err != nil {
			return errors.Join(failed, fmt.Errorf("list ip rules to egress gateways: %w", err))
		}
		for _, r := range rules {
			if r.Protocol != cni.RouteProtocol || used[r.Table] || r.Table == numbers.RouteTableAnswer {
				continue
			}
			r.Family = familyOf(is4)
			if err := handle.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, fmt.Errorf("delete an ip rule to an egress gateway: %w", err))
			}
		}
		have, err := readWays(handle, is4)
		if err != nil {
			return errors.Join(failed, err)
		}
		for slot, r := range have {
			if used[numbers.RouteTableEgress+slot] {
				continue
			}
			for _, route := range wayRoutes(slot, r) {
				if err := handle.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
					failed = errors.Join(failed, fmt.Errorf("delete the route to an egress gateway: %w", err))
				}
			}
		}
	}
	return failed
}
