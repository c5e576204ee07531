package lb

import "github.com/fairway-net/fairway/internal/service"

// Weight returns the endpoint's weight; 0 means 1.
func Weight(e service.Endpoint) int { return max(int(e.Weight), 1) }

// Shares returns the number of slots of each endpoint in a list of about limit slots: its weight divided by the
// greatest common divisor of all weights. If the weights need more slots than limit, and more than one slot for each
// endpoint, they are scaled down to at least one slot each. Shares are then exact to 1/limit.
func Shares(all []service.Endpoint, limit int) []int {
	shares := make([]int, len(all))
	divisor, total := 0, 0
	for i, e := range all {
		shares[i] = Weight(e)
		if divisor != 1 && divisor != shares[i] {
			divisor = gcd(shares[i], divisor)
		}
		total += shares[i]
	}
	if divisor == 0 || divisor == 1 && total <= max(limit, len(all)) {
		return shares
	}
	total /= divisor
	for i := range shares {
		shares[i] /= divisor
		if total > max(limit, len(all)) {
			shares[i] = max(shares[i]*limit/total, 1)
		}
	}
	return shares
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Turns returns one round of smooth weighted round robin as indexes of endpoints. Each endpoint is there as often as
// its share says, and as far from its last turn as possible. Shares of 3 and 1 give 0, 0, 1, 0. A share of 0 has no
// turn.
//
// Each endpoint earns its share before every turn. The endpoint with the most credit takes the turn and pays the sum of
// all shares; the first wins if several have the same credit. Endpoints of the same share take turns in their order, so
// only the next of them is compared.
func Turns(shares []int) []int {
	total := 0
	var groups []*turnGroup
	byShare := map[int]*turnGroup{}
	for i, share := range shares {
		if share <= 0 {
			continue
		}
		total += share
		g := byShare[share]
		if g == nil {
			g = &turnGroup{share: share}
			byShare[share] = g
			groups = append(groups, g)
		}
		g.members = append(g.members, i)
	}
	round := make([]int, 0, total)
	for turn := 1; turn <= total; turn++ {
		best := groups[0]
		for _, g := range groups[1:] {
			credit, most := g.credit(turn, total), best.credit(turn, total)
			if credit > most || credit == most && g.first() < best.first() {
				best = g
			}
		}
		round = append(round, best.first())
		if best.next++; best.next == len(best.members) {
			best.next, best.turns = 0, best.turns+1
		}
	}
	return round
}

// A turnGroup is the endpoints of one share.
type turnGroup struct {
	share   int
	members []int
	next    int // index into members: the member with the next turn
	turns   int // turns that this member had
}

func (g *turnGroup) first() int { return g.members[g.next] }

// credit is the number of shares that the next member has earned and not paid.
func (g *turnGroup) credit(turn, total int) int { return turn*g.share - g.turns*total }
