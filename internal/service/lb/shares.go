package lb

import "github.com/fairway-net/fairway/internal/service"

// Weight returns the endpoint's weight, at least 1: a weight of 0 means 1.
func Weight(e service.Endpoint) int { return max(int(e.Weight), 1) }

// Shares returns how many slots each endpoint has in a list of about most slots: its
// weight divided by the greatest common divisor of all weights. Weights that would need
// more slots than most, and more than one for each endpoint, are scaled down, to at least
// one slot each; they are then exact to 1/most of all.
func Shares(all []service.Endpoint, most int) []int {
	shares := make([]int, len(all))
	divisor, total := 0, 0
	for i, e := range all {
		shares[i] = Weight(e)
		if divisor != 1 && divisor != shares[i] {
			divisor = gcd(shares[i], divisor)
		}
		total += shares[i]
	}
	if divisor == 0 || divisor == 1 && total <= max(most, len(all)) {
		return shares
	}
	total /= divisor
	for i := range shares {
		shares[i] /= divisor
		if total > max(most, len(all)) {
			shares[i] = max(shares[i]*most/total, 1)
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

// Turns returns one round of smooth weighted round robin: the index of the endpoint whose
// turn it is, each as often as its share says and as far from its last turn as possible.
// Shares of 3 and 1 give 0, 0, 1, 0. A share of 0 has no turn.
//
// Each endpoint earns its share before every turn; the one that has earned most, the first
// among equals, takes the turn and pays the sum of all shares. Endpoints of the same share
// take turns among themselves in their order, so that only the next of each is compared.
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
	next    int // index into members: whose turn is next
	turns   int // turns that this member has had
}

func (g *turnGroup) first() int { return g.members[g.next] }

// credit is what the next member has earned and not paid.
func (g *turnGroup) credit(turn, total int) int { return turn*g.share - g.turns*total }
