package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// A server is the records of a zone. It adds nothing next to a CNAME record, and no CNAME record next to others.
type server map[string]Set // by name and type

func (s server) put(set Set) {
	for _, o := range s {
		if o.Name == set.Name && o.Type != set.Type && (o.Type == "CNAME" || set.Type == "CNAME") {
			return
		}
	}
	s[set.Name+" "+set.Type] = set
}

func (s server) apply(p Plan) {
	for _, c := range p.Changes {
		for _, pair := range [][2]Set{{c.Old, c.New}, {c.OldTXT, c.NewTXT}} {
			if pair[1].exists() {
				s.put(pair[1])
			} else {
				delete(s, pair[0].Name+" "+pair[0].Type)
			}
		}
	}
}

func (s server) sets() (all []Set) {
	for _, set := range s {
		all = append(all, set)
	}
	return all
}

// TestRandomPlans: with random wants and records, a plan changes only records whose TXT record names us. A few passes
// later nothing changes any more, and every want is there or skipped.
func TestRandomPlans(t *testing.T) {
	const runs = 20_000
	for seed := range uint64(runs) {
		if !randomPlan(t, rand.New(rand.NewPCG(seed, 1))) {
			t.Fatalf("seed %d", seed)
		}
	}
}

func randomPlan(t *testing.T, r *rand.Rand) (ok bool) {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	cfg := Config{Registry: Registry{Owner: "me", Prefix: pick("", "own.", "%{record_type}-"), Wildcard: pick("", "any")}, Policy: pick(Sync, UpsertOnly), TTL: 300}
	if cfg.Prefix == "" {
		cfg.Suffix = pick("", "-own")
	}
	name := func() string {
		return pick("x.z", "y.z", "a-x.z", "cname-x.z", "*.z", "any.z", "own.a-x.z", "a-x-own.z", "x.sub.z", "z")
	}
	value := map[string]func() string{"A": func() string { return pick("192.0.2.1", "192.0.2.2") }, "AAAA": func() string { return "2001:db8::1" }, "CNAME": func() string { return "lb.example.com" }}
	s := server{}
	for range r.IntN(8) {
		kind := pick("A", "AAAA", "CNAME", "MX", "NS")
		set := Set{Name: name(), Type: kind, TTL: 60, Values: []string{"mail.z"}}
		if value[kind] != nil {
			set.Values = []string{value[kind]()}
		}
		s.put(set)
		if value[kind] != nil && r.IntN(3) > 0 {
			text := fmt.Sprintf("heritage=external-dns,external-dns/owner=%s,external-dns/resource=%s/n/o", pick("me", "me", "them"), pick("service", "ingress"))
			s.put(Set{Name: cfg.TXTName(set.Name, kind), Type: typeTXT, TTL: 60, Values: []string{text}})
		}
	}
	in := Input{Zones: []string{"z"}, Existing: s.sets(), Listed: map[string]bool{"service": true}}
	for range r.IntN(6) {
		kind := pick("A", "AAAA", "CNAME")
		in.Wants = append(in.Wants, Want{Set{name(), kind, 0, []string{value[kind]()}}, names.Ref{Kind: "Service", Namespace: "n", Name: "o"}})
	}
	in.Wants = consistent(in.Wants)
	in.Names = len(in.Wants)
	var again Plan
	for pass := range 4 {
		p := New(cfg, in)
		before := fmt.Sprintf("%+v\n%v\n%v\nplan %v", cfg, in.Wants, in.Existing, p)
		for _, c := range p.Changes {
			o, named := ownerOf(s[cfg.TXTName(c.Old.Name, c.Old.Type)+" "+typeTXT])
			if c.Action != Create && (!named || o.owner != "me") || c.Action == Create && s[c.New.Name+" "+c.New.Type].exists() {
				t.Errorf("%v is not ours:\n%s", c, before)
				return false
			}
		}
		if again = p; pass == 3 && len(p.Changes) > 0 { // a name may become free by the removal of another one
			t.Errorf("the passes have no end:\n%s", before)
			return false
		}
		s.apply(p)
		in.Existing = s.sets()
	}
	for _, w := range in.Wants {
		there := slices.Equal(s[w.Name+" "+w.Type].Values, w.Values)
		if !there && !slices.ContainsFunc(again.Skipped, func(k Skip) bool { return k.Name == w.Name && k.Type == w.Type }) {
			t.Errorf("%v is neither there nor skipped:\n%+v\n%v\n%v", w, cfg, in.Wants, s)
			return false
		}
	}
	return true
}

// consistent keeps the wants that Wants can make: one set of a name and type, and a CNAME record alone.
func consistent(wants []Want) (all []Want) {
	for _, w := range wants {
		if !slices.ContainsFunc(all, func(o Want) bool {
			return o.Name == w.Name && (o.Type == w.Type || o.Type == "CNAME" || w.Type == "CNAME")
		}) {
			all = append(all, w)
		}
	}
	return all
}
