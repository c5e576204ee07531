package share

import "net/netip"

const (
	// The agent begins to count flows when the table is nearlyFull, in percent. It ends when enough is free again.
	nearlyFull, enoughRoom = 80, 60
	// leastShare is the divisor for the share that each pod has, also in a full table.
	leastShare = 20
)

// counting reports whether the table is so full that pods have shares. refusing: there are pods over their share.
func counting(flows, limit int, refusing bool) bool {
	percent := flows * 100 / limit
	return percent >= nearlyFull || refusing && percent >= enoughRoom
}

// shareOf returns the number of flows that a pod may have.
func shareOf(flows, limit int) int { return max(limit-flows, limit/leastShare) }

// overShare returns the pods over their share, with their flows. A pod that was over its share remains so until it has
// half of a share.
func overShare(held, was map[netip.Addr]int, flows, limit int) map[netip.Addr]int {
	over, share := map[netip.Addr]int{}, shareOf(flows, limit)
	for pod, n := range held {
		if _, refused := was[pod]; n > share || refused && n > share/2 {
			over[pod] = n
		}
	}
	return over
}
