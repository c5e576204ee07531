package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// lookAgain is the longest pause before the loop examines a doubtful first table again.
const lookAgain = 5 * time.Second

var errHeldBack = errors.New("the API server lacks most pods or NetworkPolicies that the kernel has rules for; the rules stay for now " +
	"[was it restored, or is --master wrong? --empty-after sets the time]")

// firstTable is the state of the loop until it believes its first table. The loop remembers nothing of the cluster at
// its start, but the kernel does. A first table that opens most isolated pods is doubtful, and so is a table without
// most pods of this node: it would end all of their connections.
type firstTable struct {
	held         *nftables.Held // what the kernel had at the start; nil: the first table is believed
	rules, known api.Brake
	doubted      bool
}

func newFirstTable(bound time.Duration) firstTable {
	return firstTable{rules: api.Brake{Bound: bound, Some: true}, known: api.Brake{Bound: bound, Some: true}}
}

// believe reports whether to believe a table. known reports whether the API server has a pod. lost has the addresses
// that the table opens, and the addresses of pods that are not known.
func (f *firstTable) believe(now time.Time, want *networkpolicy.Table, known func(api.Name) bool) (believed bool, lost map[netip.Addr]bool) {
	lost = map[netip.Addr]bool{}
	had, kept := 0, 0
	for _, sets := range []struct{ held, want [2]map[netip.Addr]bool }{{f.held.Isolated, want.Isolated}, {f.held.Cluster, want.Cluster}} {
		for d, all := range sets.held {
			for a := range all {
				if _, runs := want.Sandboxes[a]; len(f.held.Sandboxes) > 0 && !runs {
					continue // the pod has ended
				}
				if had++; sets.want[d][a] {
					kept++
				} else {
					lost[a] = true
				}
			}
		}
	}
	believed = f.rules.Believe(now, had, kept)
	had, kept = len(want.Sandboxes), 0
	for a, s := range want.Sandboxes {
		if known(s.Pod) {
			kept++
		} else {
			lost[a] = true
		}
	}
	return f.known.Believe(now, had, kept) && believed, lost
}

// holdBack reports whether the table must not be written yet.
func (e *Enforcer) holdBack(now time.Time, want *networkpolicy.Table) bool {
	f := &e.first
	if f.held == nil {
		return false
	}
	believed, lost := f.believe(now, want, func(pod api.Name) bool { return e.Source.Pod(pod) != nil })
	if believed {
		f.held = nil
		e.Metrics.setKept(0)
		return false
	}
	if !f.doubted {
		f.doubted = true
		e.Log.Error("NetworkPolicies stay as they were", "err", errHeldBack, "addresses", len(lost), "for", e.EmptyAfter)
		if e.ClusterEvent != nil {
			e.ClusterEvent(api.Problem{Reason: "ListLostObjects", Message: fmt.Sprintf(
				"the API server lacks most pods or NetworkPolicies that a node had rules for when its agent started; the node keeps the rules for %v", e.EmptyAfter)})
		}
	}
	e.Metrics.setKept(len(lost))
	return true
}
