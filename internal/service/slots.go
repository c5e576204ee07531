package service

// A mode in the kernel has an element for each slot of each frontend's list, so a Service's slots are
// bounded, and not its endpoints alone: two endpoints with the weights 1 and 4095 have 4096.

// maglevSizes are the sizes of Maglev's table, primes. With at least slotsEach slots for
// each endpoint, shares are even to a few percent. The first does for 31 endpoints, so
// that most Services never change the size, which moves nearly all clients.
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

// countLists returns how many lists of endpoints some ports have in a family: each frontend one, and where
// clients outside the cluster have others, two.
func (c *compilation) countLists(ports []Port) (most int) {
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
		most = max(most, len(ports)+outside)
	}
	if limit := c.node.Limits.Frontends; limit > 0 {
		most = min(most, 2*limit)
	}
	return max(most, 1)
}

// limitSlots decides how many slots each list may have, where it would have some endpoints, and returns
// of how many endpoints.
func (c *compilation) limitSlots(endpoints int) int {
	limit := c.node.Limits.Slots
	if limit == 0 {
		return endpoints
	}
	c.slots = max(limit/c.lists, 1)
	if endpoints > c.slots {
		c.problem("TooManySlots", "%d endpoints in each of %d lists are more than %d in all; %d of them count %s", endpoints, c.lists, limit, c.slots, limitAdvice)
		endpoints = c.slots
	}
	if c.balance == Maglev && MaglevSlots(endpoints) > c.slots {
		if c.balance = SourceHash; c.node.Unsupported.Has(SourceHash) {
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

// scale makes weights smaller that need more slots than most, to at least 1, and the same where there are too
// many of them.
func scale(eps []Endpoint, most int) {
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
	if divisor == 0 || most == 0 || total/int(divisor) <= max(most, len(eps)) {
		return
	}
	for i := range eps {
		eps[i].Weight = uint16(max(int(eps[i].Weight)*most/total, 1))
	}
}

// MaxShares is about how many slots a list has whose weights have no small common divisor: a share is exact to
// 1/1024 of all. A change may write them all, at once, and lists of more endpoints have no weights.
const MaxShares = 1024
