package service

// A kernel mode writes an element for each slot of each list. The limits therefore bound slots, not only endpoints: two
// endpoints with the weights 1 and 4095 have 4,096 slots.

// maglevSizes are the sizes of Maglev's table, which are primes. With at least slotsEach slots for each endpoint,
// shares are even to a few percent. Most Services have at most 31 endpoints and so never change the size, which would
// move nearly all clients.
var maglevSizes = [...]int{251, 1021, 4093, 16381, 65521}

const slotsEach = 8

// MaglevSlots returns the size of Maglev's table for a number of endpoints.
func MaglevSlots(endpoints int) int {
	for _, size := range maglevSizes {
		if size >= slotsEach*endpoints {
			return size
		}
	}
	return maglevSizes[len(maglevSizes)-1]
}

// countLists returns the number of endpoint lists of some ports in a family. Each frontend has one list, and two if
// external clients have their own.
func (c *compilation) countLists(ports []Port) (lists int) {
	nodePorts := 0
	for _, p := range ports {
		if p.NodePort != 0 {
			nodePorts++
		}
	}
	for _, is4 := range [...]bool{true, false} {
		outside := nodePorts + len(ports)*(len(c.balancers[is4])+len(c.externals[is4]))
		if c.svc.ExternalLocal {
			outside *= 2
		}
		lists = max(lists, len(ports)+outside)
	}
	if limit := c.facts.Limits.Frontends; limit > 0 {
		lists = min(lists, 2*limit)
	}
	return max(lists, 1)
}

// limitSlots sets the limit of slots for each list. It returns the number of endpoints that may count.
func (c *compilation) limitSlots(endpoints int) int {
	limit := c.facts.Limits.Slots
	if limit == 0 {
		return endpoints
	}
	c.slots = max(limit/c.lists, 1)
	if endpoints > c.slots {
		c.problem("TooManySlots", "%d endpoints in each of %d lists are more than %d in all; %d of them count %s", endpoints, c.lists, limit, c.slots, limitAdvice)
		endpoints = c.slots
	}
	if c.balance == Maglev && MaglevSlots(endpoints) > c.slots {
		if c.balance = SourceHash; c.facts.Unsupported.Has(SourceHash) {
			c.balance = Random
		}
		c.problem("TooManySlots", "Maglev's table of %d endpoints has %d slots, and each of the Service's %d lists may have %d; it is balanced by %v %s",
			endpoints, MaglevSlots(endpoints), c.lists, c.slots, c.balance, limitAdvice)
	}
	if c.svc.Weighted && endpoints > MaxShares {
		c.problem("TooManySlots", "the weights of %d endpoints do not count: they would need too many slots [at most %d endpoints can have weights]", endpoints, MaxShares)
	}
	return endpoints
}

// scale reduces weights that need more slots than limit, to at least 1. If there are more than MaxShares endpoints, all
// weights become equal.
func scale(eps []Endpoint, limit int) {
	if len(eps) > MaxShares {
		for i := range eps {
			eps[i].Weight = 1
		}
		return
	}
	divisor, total := uint16(0), 0
	for _, e := range eps {
		divisor = gcd(divisor, e.Weight)
		total += int(e.Weight)
	}
	if divisor == 0 || limit == 0 || total/int(divisor) <= max(limit, len(eps)) {
		return
	}
	for i := range eps {
		eps[i].Weight = uint16(max(int(eps[i].Weight)*limit/total, 1))
	}
}

// MaxShares is the approximate number of slots of a list with weights that have no small common divisor: a share is
// exact to 1/1024. Lists of more endpoints have no weights.
const MaxShares = 1024
