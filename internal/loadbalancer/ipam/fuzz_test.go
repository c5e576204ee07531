package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// A choices turns bytes into choices; behind the last byte all are 0.
type choices struct{ data []byte }

func (c *choices) below(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	v := int(c.data[0]) % n
	c.data = c.data[1:]
	return v
}

func (c *choices) one(n int) bool { return c.below(n) == 1 }

func pick[T any](c *choices, all ...T) T { return all[c.below(len(all))] }

func (c *choices) addr() netip.Addr {
	if c.one(3) {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", c.below(6)))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(250 + c.below(10))}).Next()
}

func (c *choices) rangeOf() Range {
	first, n := c.addr(), c.below(5)
	last := first
	for ; n > 0; n-- {
		last = last.Next()
	}
	return Range{first, last}
}

func (c *choices) pools() (all []*Pool) {
	for i := range 1 + c.below(3) {
		p := &Pool{Name: fmt.Sprintf("pool-%d", i), Created: int64(c.below(3)), AutoAssign: !c.one(4), AvoidBuggyIPs: c.one(3)}
		for range 1 + c.below(3) {
			p.Ranges = append(p.Ranges, c.rangeOf())
		}
		if c.one(3) {
			p.Allocation = &Allocation{Priority: c.below(3)}
			if c.one(2) {
				p.Allocation.Namespaces = []string{pick(c, "red", "blue")}
			}
		}
		all = append(all, p)
	}
	return all
}

func (c *choices) service() *Service {
	s := &Service{
		Name:    api.Name{Namespace: pick(c, "red", "blue"), Name: pick(c, "a", "b", "c", "d", "e")},
		Created: int64(c.below(4)), Wanted: !c.one(8),
		Families:   pick(c, []Family{IPv4}, []Family{IPv4}, []Family{IPv6}, []Family{IPv4, IPv6}, []Family{IPv6, IPv4}),
		SharingKey: pick(c, "", "", "x", "y"), Backing: pick(c, "", "", "app=a"),
	}
	s.PreferDual = len(s.Families) == 2 && c.one(2)
	for range 1 + c.below(2) {
		s.Ports = append(s.Ports, Port{api.TCP, uint16(80 + c.below(3))})
	}
	switch c.below(8) {
	case 1:
		s.Pool = fmt.Sprintf("pool-%d", c.below(4))
	case 2:
		s.Addrs = []netip.Addr{c.addr()}
	case 3:
		if a, b := c.addr(), c.addr(); FamilyOf(a) != FamilyOf(b) {
			s.Addrs = []netip.Addr{a, b}
		}
	case 4:
		s.Refused = "no sense"
	}
	if c.one(4) {
		s.Assigned = []netip.Addr{c.addr(), c.addr()}[:1+c.below(2)]
		s.AssignedFrom = pick(c, "", "pool-0", "gone")
	}
	return s
}

// step changes something in both, and returns what.
func step(c *choices, a *Allocator, w *slow) string {
	switch c.below(10) {
	case 0:
		w.pools = c.pools()
		a.SetPools(w.pools)
		text := "pools"
		for _, p := range w.pools {
			text += fmt.Sprintf(" %+v", *p)
		}
		return text
	case 1:
		w.reserved = nil
		for range c.below(3) {
			w.reserved = append(w.reserved, c.rangeOf())
		}
		a.Reserve(w.reserved)
		return fmt.Sprint("reserved ", w.reserved)
	case 2, 3:
		name := c.service().Name
		delete(w.services, name)
		a.Remove(name)
		return fmt.Sprint("removed ", name)
	}
	s := c.service()
	w.services[s.Name] = s
	a.Set(s)
	return fmt.Sprintf("set %v created=%d wanted=%v families=%v prefer=%v ports=%v key=%q backing=%q pool=%q addrs=%v refused=%q status=%v of %q",
		s.Name, s.Created, s.Wanted, s.Families, s.PreferDual, s.Ports, s.SharingKey, s.Backing, s.Pool, s.Addrs, s.Refused, s.Assigned, s.AssignedFrom)
}

func state(have map[api.Name][]netip.Addr, from map[api.Name]string) string {
	var b strings.Builder
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		for _, ns := range []string{"blue", "red"} {
			n := api.Name{Namespace: ns, Name: name}
			if len(have[n]) > 0 {
				fmt.Fprintf(&b, "%v %v of %s\n", n, have[n], from[n])
			}
		}
	}
	return b.String()
}

func stateOf(a *Allocator) string {
	have, from := map[api.Name][]netip.Addr{}, map[api.Name]string{}
	for name, r := range a.records {
		have[name], from[name] = r.have, r.pool
	}
	return state(have, from)
}

// compare runs random steps. After each Decide both have given the same, the promises of the
// package hold, and one that starts anew with what the statuses say comes to the same.
func compare(t *testing.T, data []byte) {
	c := &choices{data}
	a, w := New(), newSlow()
	told := map[api.Name][]netip.Addr{} // what Decisions said
	var history []string
	for len(c.data) > 0 {
		for range 1 + c.below(3) {
			history = append(history, step(c, a, w))
		}
		before := stateOf(a)
		w.decide()
		for _, d := range a.Decide() {
			told[d.Name] = d.Addrs
		}
		got, want := stateOf(a), state(w.have, w.from)
		if got != want {
			t.Fatalf("%s\nbefore:\n%sgot:\n%swant:\n%s", strings.Join(history, "\n"), before, got, want)
		}
		checkState(t, a, told, history)
		if again := restart(a, w); again != got {
			t.Fatalf("%s\ngot:\n%safter a restart:\n%s", strings.Join(history, "\n"), got, again)
		}
	}
}

// restart returns the state of an Allocator that begins with the objects as they are.
func restart(a *Allocator, w *slow) string {
	b := New()
	for name, s := range w.services {
		now := *s
		now.Assigned, now.AssignedFrom = nil, ""
		if r := a.records[name]; r != nil {
			now.Assigned, now.AssignedFrom = r.have, r.pool
		}
		b.Set(&now)
	}
	b.SetPools(w.pools)
	b.Reserve(w.reserved)
	b.Decide()
	return stateOf(b)
}

// checkState checks what must always be so.
func checkState(t *testing.T, a *Allocator, told map[api.Name][]netip.Addr, history []string) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Fatalf("%s\n%s", strings.Join(history, "\n"), fmt.Sprintf(format, args...))
	}
	users := map[netip.Addr][]*record{}
	served := map[string]int{}
	for name, r := range a.records {
		if len(r.have) > 0 {
			served[r.pool]++
		}
		if !slices.Equal(told[name], r.have) {
			fail("%v has %v, and Decide said %v", name, r.have, told[name])
		}
		for _, addr := range r.have {
			for _, o := range users[addr] {
				same := func(p Port) bool { return slices.Contains(o.Ports, p) }
				if r.SharingKey == "" || r.SharingKey != o.SharingKey || r.Backing != o.Backing || slices.ContainsFunc(r.Ports, same) {
					fail("%v and %v have %v", name, o.Name, addr)
				}
			}
			users[addr] = append(users[addr], r)
		}
	}
	if len(users) != len(a.holders) {
		fail("%d addresses are in use, and %d are noted", len(users), len(a.holders))
	}
	for addr := range users {
		if !a.used.has(addr) {
			fail("%v is in use, and not noted", addr)
		}
	}
	inUse := 0
	for _, p := range a.Report().Pools {
		inUse += int(p.InUse4 + p.InUse6)
		if p.Services != served[p.Pool] {
			fail("pool %s counts %d Services, and %d have its addresses", p.Pool, p.Services, served[p.Pool])
		}
	}
	if inUse+len(a.outside) != len(users) {
		fail("pools count %d addresses in use, %d are in none, of %d", inUse, len(a.outside), len(users))
	}
}

func TestReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		data := make([]byte, 300)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		compare(t, data)
	}
}

func FuzzAllocator(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Fuzz(func(t *testing.T, data []byte) {
		compare(t, data[:min(len(data), 1000)])
	})
}
