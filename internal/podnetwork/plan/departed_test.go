package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDepartures: the routes of a node whose object is gone stay for a minute, or until there is
// such a Node again.
func TestDepartures(t *testing.T) {
	node := func(name string) Peer {
		return Peer{Name: name, Addrs: addresses("192.0.2.1"), PodCIDRs: prefixes("10.244.1.0/24")}
	}
	a, b, c := node("a"), node("b"), node("c")
	var d Departures
	start := born(1)
	for _, step := range []struct {
		after   time.Duration
		present []Peer
		want    string
	}{
		{0, []Peer{a, b, c}, ""},
		{1 * time.Second, []Peer{a}, "b c"},
		{9 * time.Second, []Peer{a, c}, "b"},
		{30 * time.Second, []Peer{a}, "b c"},
		{60 * time.Second, []Peer{a}, "b c"},
		{61 * time.Second, []Peer{a}, "c"},
		{89 * time.Second, nil, "c a"},
		{90 * time.Second, nil, "a"},
		{149 * time.Second, nil, ""},
	} {
		var got []string
		all, gone := d.Notice(start.Add(step.after), step.present)
		for _, p := range gone {
			got = append(got, p.Name)
		}
		if len(all) != len(step.present) {
			t.Errorf("after %v: %d nodes are there, want %d", step.after, len(all), len(step.present))
		}
		if strings.Join(got, " ") != step.want {
			t.Errorf("after %v: %q have departed, want %q", step.after, got, step.want)
		}
	}
}

// TestMadeAgain: a Node that is made again has what it had until its object says it, for a minute.
func TestMadeAgain(t *testing.T) {
	whole := Peer{Name: "a", Addrs: addresses("192.0.2.1"), PodCIDRs: prefixes("10.244.1.0/24")}
	bare, half := Peer{Name: "a", Created: born(3)}, Peer{Name: "a", Created: born(3), PodCIDRs: prefixes("10.244.9.0/24")}
	var d Departures
	start := born(4)
	for _, step := range []struct {
		after   time.Duration
		present []Peer
		want    string
	}{
		{0, []Peer{bare}, "[] []"}, // it never had any
		{1 * time.Second, []Peer{whole}, "[192.0.2.1] [10.244.1.0/24]"},
		{2 * time.Second, nil, ""},
		{30 * time.Second, []Peer{bare}, "[192.0.2.1] [10.244.1.0/24]"},
		{31 * time.Second, []Peer{half}, "[192.0.2.1] [10.244.9.0/24]"},
		{32 * time.Second, nil, ""},
		{61 * time.Second, []Peer{half}, "[192.0.2.1] [10.244.9.0/24]"},
		{62 * time.Second, []Peer{half}, "[] [10.244.9.0/24]"},
		{63 * time.Second, []Peer{half}, "[] [10.244.9.0/24]"},
	} {
		got := ""
		all, gone := d.Notice(start.Add(step.after), step.present)
		if len(all) == 1 {
			got = fmt.Sprint(all[0].Addrs, " ", all[0].PodCIDRs)
		}
		if got != step.want || len(all)+len(gone) != 1 {
			t.Errorf("after %v: has %q, %d are gone, want %q", step.after, got, len(gone), step.want)
		}
	}
}

// TestDepartedRoutes: a node without an object has what no other node has.
func TestDepartedRoutes(t *testing.T) {
	for _, test := range []struct {
		name    string
		joining Peer
		want    string
	}{
		{"nobody else", Peer{}, "10.244.7.0/24 via 192.0.2.7"},
		{"another node", Peer{Addrs: addresses("192.0.2.8"), PodCIDRs: prefixes("10.244.8.0/24")}, "10.244.7.0/24 via 192.0.2.7, 10.244.8.0/24 via 192.0.2.8"},
		{"its podCIDR is another's", Peer{Addrs: addresses("192.0.2.8"), PodCIDRs: prefixes("10.244.7.0/24")}, "10.244.7.0/24 via 192.0.2.8"},
		{"a part of its podCIDR is another's", Peer{Addrs: addresses("192.0.2.8"), PodCIDRs: prefixes("10.244.7.64/26")}, "10.244.7.64/26 via 192.0.2.8"},
		{"it has another name now", Peer{Addrs: addresses("192.0.2.7"), PodCIDRs: prefixes("10.244.8.0/24")}, "10.244.8.0/24 via 192.0.2.7"},
		{"its address is in another's podCIDR", Peer{Addrs: addresses("192.0.2.8"), PodCIDRs: prefixes("10.244.7.0/24", "192.0.2.6/31")}, "10.244.7.0/24 via 192.0.2.8"},
	} {
		c := testState()
		c.Peers, c.ClusterCIDRs = []Peer{c.Self}, bothCIDRs
		if test.joining.Addrs != nil {
			test.joining.Name, test.joining.Created = "joining", born(9)
			c.Peers = append(c.Peers, test.joining)
		}
		without := Make(c)
		c.Departed = []Peer{{Name: "departed", Created: born(1), Addrs: addresses("192.0.2.7", "203.0.113.1"), PodCIDRs: prefixes("10.244.7.0/24", "fd00:10:244:7::/64", "8.8.8.0/24")}}
		p := Make(c)
		var got []string
		for _, dst := range sortedKeys(p.Routes) {
			if r := p.Routes[dst]; r.Via.IsValid() {
				got = append(got, fmt.Sprintf("%s via %s", dst, r.Via))
			}
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: routes %q, want %q", test.name, got, test.want)
		}
		if !slices.Equal(p.Problems, without.Problems) {
			t.Errorf("%s: problems %v, without the node %v", test.name, p.Problems, without.Problems)
		}
	}
}
