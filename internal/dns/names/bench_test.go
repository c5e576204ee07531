package names

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// manyObjects are 10,000 Services and Ingresses in 100 namespaces.
func manyObjects() (c Cluster) {
	for i := range 10_000 {
		o := Object{Ref: Ref{Kind: "Service", Namespace: fmt.Sprint("ns-", i%100), Name: fmt.Sprint("svc-", i)}, Created: int64(i), Own: true, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}
		if i%2 == 1 {
			o.Kind, o.Own, o.Hostnames = "Ingress", false, []string{fmt.Sprintf("www%d.example.org", i)}
		}
		c.Objects = append(c.Objects, o)
	}
	return c
}

var benchConfig = Config{Zones: []string{"example.org"}, Nameservers: []string{"dns.kube-system"}, TTL: 60}

// BenchmarkChange changes one of 10,000 objects and makes the table again.
func BenchmarkChange(b *testing.B) {
	c := manyObjects()
	table, _ := New(c, benchConfig, nil, 1)
	for i := 0; b.Loop(); i++ {
		c.Objects = slices.Clone(c.Objects)
		c.Objects[5000].Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		table, _ = New(c, benchConfig, table, 1)
	}
	if table.Len() != 10_000 {
		b.Fatal(table.Len())
	}
}
