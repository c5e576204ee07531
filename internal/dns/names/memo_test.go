package names

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// A table made from the previous one is the table made from nothing, for random changes of objects and gateways, and its
// serial number grows only with a change of records. The previous table stays as it was.
func TestTableFollowsChanges(t *testing.T) {
	cfg := Config{Zones: []string{"example.org", "lab.example.org"}, Nameservers: []string{"dns.ns-0"}, TTL: 60}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var c Cluster
		table, _ := New(c, cfg, nil, 1)
		for step := range 60 {
			c = randomChange(rng, c)
			before := contents(table)
			next, problems := New(c, cfg, table, 1)
			again, want := New(c, cfg, nil, 1)
			if got := contents(next); got != contents(again) {
				t.Fatalf("seed %d, step %d: got\n%s\nwant\n%s", seed, step, got, contents(again))
			}
			if !slices.Equal(problems, want) {
				t.Fatalf("seed %d, step %d: problems\n%v\nwant\n%v", seed, step, problems, want)
			}
			if contents(table) != before {
				t.Fatalf("seed %d, step %d: the previous table has changed", seed, step)
			}
			if grown := next.Serial() > table.Serial(); grown != (before != contents(next)) {
				t.Fatalf("seed %d, step %d: serial number %d after %d", seed, step, next.Serial(), table.Serial())
			}
			if rng.IntN(10) > 0 { // else the same table is the previous one twice
				table = next
			}
		}
	}
}

// contents are the records and the existing names of a table, without its serial number.
func contents(t *Table) (text string) {
	for _, z := range t.zones {
		text += fmt.Sprintln(z.name, z.records, z.longer)
	}
	return text
}

// randomChange returns a cluster with an object or a gateway more, less or changed, in another order.
func randomChange(rng *rand.Rand, c Cluster) Cluster {
	c.Objects, c.Gateways = slices.Clone(c.Objects), slices.Clone(c.Gateways)
	address := func() []netip.Addr {
		return slices.Repeat([]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(4))})}, rng.IntN(3))
	}
	switch n := len(c.Objects); {
	case n > 0 && rng.IntN(4) == 0:
		c.Objects = slices.Delete(c.Objects, 0, 1+rng.IntN(min(n, 3)))
	case n > 0 && rng.IntN(4) == 0:
		c.Objects[0].Addresses = address()
	case len(c.Gateways) > 0 && rng.IntN(6) == 0:
		c.Gateways = c.Gateways[1:]
	case rng.IntN(5) == 0:
		c.Gateways = append(c.Gateways, Gateway{Namespace: "ns-0", Name: fmt.Sprint("gw-", rng.IntN(1000)), Addresses: address(), Listeners: []Listener{{Name: "a", Hostname: "*.example.org"}}})
	default:
		o := Object{Ref: Ref{"Service", fmt.Sprint("ns-", rng.IntN(3)), fmt.Sprint("svc-", rng.IntN(100000))}, Created: int64(rng.IntN(20)), Own: rng.IntN(2) == 0, Addresses: address()}
		for range rng.IntN(3) {
			o.Hostnames = append(o.Hostnames, []string{"www.example.org", "a.b.c.example.org", "c.example.org", "x.lab.example.org", "dns.ns-0.example.org", "*.example.org", "_bad", "www.example.com"}[rng.IntN(8)])
		}
		if len(c.Gateways) > 0 && rng.IntN(3) == 0 {
			o.Kind, o.Parents = "HTTPRoute", []Parent{{Namespace: "ns-0", Name: c.Gateways[rng.IntN(len(c.Gateways))].Name}}
		}
		c.Objects = append(c.Objects, o)
	}
	rng.Shuffle(len(c.Objects), func(i, j int) { c.Objects[i], c.Objects[j] = c.Objects[j], c.Objects[i] })
	return c
}
