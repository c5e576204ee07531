package node

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// addWithin adds the elements of the rules about senders through the tunnel inside of WireGuard.
func addWithin(w *plan.Within, all elements) {
	for _, set := range []string{"ends4", "ends6", "partners4", "partners6", "answers4", "answers6"} {
		all[set] = map[string]string{}
	}
	if w == nil {
		return
	}
	padded := func(m plan.MAC) string { return string(append(m[:], 0, 0)) } // parts of keys have a multiple of four bytes
	for m, end := range w.Tunnel.Remotes {
		all["ends"+plan.FamilyName(end)][string(end.AsSlice())+padded(m)] = ""
	}
	for pod, m := range w.Partners {
		all["partners"+plan.FamilyName(pod)][padded(m)+string(pod.AsSlice())] = ""
	}
	for _, pod := range w.Answered {
		all["answers"+plan.FamilyName(pod)][string(pod.AsSlice())] = ""
	}
}

// syncAnswers writes the routes of answers, and the ip rule that leads marked packets to them.
func syncAnswers(handle netlinksafe.Handle, w *plan.Within, link int) error {
	for _, is4 := range []bool{true, false} {
		wanted := map[netip.Prefix]netip.Addr{}
		if w != nil && link != 0 {
			for dst, via := range w.Answers {
				if dst.Addr().Is4() == is4 {
					wanted[dst] = via
				}
			}
		}
		none := len(wanted) == 0
		if err := syncAnswerRoutes(handle, is4, wanted, link); err != nil {
			return fmt.Errorf("set the routes of answers to egress addresses: %w", err)
		}
		rule := markRule(markAnswer, numbers.RouteTableAnswer, is4)
		change := handle.RuleAdd
		if none {
			change = handle.RuleDel
		}
		err := change(rule)
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("set the ip rule of answers to egress addresses: %w", err)
		}
	}
	return nil
}

func syncAnswerRoutes(handle netlinksafe.Handle, is4 bool, wanted map[netip.Prefix]netip.Addr, link int) error {
	have, err := handle.RouteListFiltered(familyOf(is4), &netlink.Route{Table: numbers.RouteTableAnswer, Protocol: cni.RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	for _, r := range have {
		via, _ := netip.AddrFromSlice(r.Gw)
		dst := prefixOf(r.Dst, familyOf(is4))
		if wanted[dst] == via.Unmap() && via.IsValid() && r.LinkIndex == link {
			delete(wanted, dst)
		} else if wanted[dst].IsValid() {
			continue // replaced below
		} else if err := handle.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	for dst, via := range wanted {
		r := kernelRoute(plan.Route{Dst: dst, Via: via, Link: link, By: plan.WayVXLAN})
		r.Table = numbers.RouteTableAnswer
		if err := handle.RouteReplace(r); err != nil {
			return err
		}
	}
	return nil
}
