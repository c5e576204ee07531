package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// Egress tells a Network which pods have an egress address, level-triggered.
type Egress interface {
	// Dirty receives when the answer of Pods has changed.
	Dirty() <-chan struct{}
	// Pods returns the pods by their addresses. The map never changes. While known is false, the kernel's state stays.
	Pods() (all map[netip.Addr]plan.EgressPod, known bool)
}

// The marks of packets that leave the cluster with an egress address.
const (
	markHere   = numbers.MarkEgress
	markNobody = numbers.EgressNobody
	markAnswer = numbers.EgressAnswer
)

// gatewayMark returns the mark of packets that use the routing table RouteTableEgress + slot.
func gatewayMark(slot int) uint32 {
	i := uint32(slot + 1) // 0 is markHere, the last value is markNobody
	return numbers.MarkEgress | i&0xf | i&0x10<<1
}

// assign gives each wanted way to a gateway a table. have has the ways of the tables by slot. A way keeps its table, so
// that no packet with the mark of one way takes another. without is the number of ways that get no table.
func assign(wanted map[plan.EgressRoute]bool, have map[int]plan.EgressRoute) (slots map[plan.EgressRoute]int, without int) {
	slots = map[plan.EgressRoute]int{}
	for _, slot := range slices.Sorted(maps.Keys(have)) {
		if _, twice := slots[have[slot]]; wanted[have[slot]] && !twice {
			slots[have[slot]] = slot
		}
	}
	free := 0
	for _, r := range slices.SortedFunc(maps.Keys(wanted), compareEgress) {
		if _, ok := slots[r]; ok {
			continue
		}
		for ; free < numbers.RouteTablesEgress; free++ {
			if _, taken := have[free]; !taken {
				break
			}
		}
		if free == numbers.RouteTablesEgress {
			without++
			continue
		}
		slots[r] = free
		free++
	}
	return slots, without
}

func compareEgress(a, b plan.EgressRoute) int {
	return plan.CompareHops(plan.Hop{Via: a.Via, Link: a.Link}, plan.Hop{Via: b.Via, Link: b.Link})
}

// withoutTable returns the problem of a number of ways without a table, or nothing for 0.
func withoutTable(ways int) []plan.Problem {
	if ways == 0 {
		return nil
	}
	return []plan.Problem{{Reason: plan.ReasonGateway, Message: fmt.Sprintf("pods of this node would leave the cluster by %d nodes more than the %d that are possible: those reach nothing outside [fewer egress addresses, or pods of fewer Services on this node]", ways, numbers.RouteTablesEgress)}}
}
