package gateway_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// matchesHost is the rule of the Gateway API for host names, said as simply as possible.
func matchesHost(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, suffix) && host != suffix[1:]
	}
	return pattern == "" || pattern == host
}

// specific orders patterns: no wildcard first, then the longer one.
func specific(a, b string) int {
	wild := func(s string) int {
		if s == "" || s[0] == '*' {
			return 1
		}
		return 0
	}
	return cmp.Or(wild(a)-wild(b), len(b)-len(a))
}

// A candidate is a match of a rule that has a request.
type candidate struct {
	host  string
	match gateway.HTTPMatch
	route *gateway.HTTPRoute
	rule  int
	index int
}

// slowLookup finds the rule of a request from the objects: all listeners, all routes, all matches, the best of those that hold.
func slowLookup(objects []gateway.Object, g *gateway.Gateway, r *request) string {
	var best *gateway.ListenerSpec
	for i := range g.Listeners {
		l := &g.Listeners[i]
		if matchesHost(l.Hostname, r.host) && (best == nil || specific(l.Hostname, best.Hostname) < 0) {
			best = l
		}
	}
	if best == nil {
		return "404 no listener"
	}
	var all []candidate
	for _, o := range objects {
		route, ok := o.(*gateway.HTTPRoute)
		if !ok || !slices.ContainsFunc(route.Parents, func(p gateway.ObjectRef) bool { return p.Section == "" || p.Section == best.Name }) {
			continue
		}
		all = append(all, candidates(route, best.Hostname, r)...)
	}
	if len(all) == 0 {
		return "404 no route"
	}
	slices.SortFunc(all, better)
	return fmt.Sprintf("HTTPRoute %s rule %d", all[0].route.Name, all[0].rule)
}

// candidates returns the matches of a route that hold for a request.
func candidates(route *gateway.HTTPRoute, listener string, r *request) (all []candidate) {
	hosts := route.Hostnames
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, own := range hosts {
		h := own
		if h == "" || listener != "" && specific(listener, h) < 0 {
			h = listener // the narrower one of the two counts
		}
		if !matchesHost(own, r.host) || !matchesHost(listener, r.host) {
			continue
		}
		for i, rule := range route.Rules {
			for j, m := range rule.Matches {
				if holds(m, r) {
					all = append(all, candidate{h, m, route, i, j})
				}
			}
		}
	}
	return all
}

func holds(m gateway.HTTPMatch, r *request) bool {
	switch p := m.Path.Value; m.Path.Type {
	case "Exact":
		if r.path != p {
			return false
		}
	default:
		if !strings.HasPrefix(strings.TrimSuffix(r.path, "/")+"/", strings.TrimSuffix(p, "/")+"/") {
			return false
		}
	}
	for _, h := range m.Headers {
		if r.header[h.Name] != h.Value {
			return false
		}
	}
	for _, q := range m.Query {
		if r.query.Get(q.Name) != q.Value {
			return false
		}
	}
	return m.Method == "" || m.Method == r.method
}

// better is the order of the Gateway API.
func better(a, b candidate) int {
	exact := func(c candidate) int { return strings.Count(c.match.Path.Type, "Exact") }
	method := func(c candidate) int { return min(len(c.match.Method), 1) }
	return cmp.Or(
		specific(a.host, b.host), exact(b)-exact(a), len(b.match.Path.Value)-len(a.match.Path.Value), method(b)-method(a),
		len(b.match.Headers)-len(a.match.Headers), len(b.match.Query)-len(a.match.Query),
		cmp.Compare(a.route.Created, b.route.Created), a.route.Compare(b.route.Name), a.rule-b.rule, a.index-b.index,
	)
}

func pick(rnd *rand.Rand, all ...string) string { return all[rnd.IntN(len(all))] }

func randomHost(rnd *rand.Rand) string {
	return pick(rnd, "a.com", "*.a.com", "b.a.com", "*.b.a.com", "c.b.a.com", "*.com", "x.org", "")
}

func randomRoute(rnd *rand.Rand, name string) *gateway.HTTPRoute {
	r := &gateway.HTTPRoute{}
	r.Name, r.Created, r.Generation = api.Name{Namespace: "infra", Name: name}, int64(rnd.IntN(3)), rnd.Int64()
	r.Parents = []gateway.ObjectRef{parentRef("infra/gw" + pick(rnd, "", "", "/l0", "/l1"))}
	for range rnd.IntN(3) {
		if h := randomHost(rnd); h != "" && !slices.Contains(r.Hostnames, h) {
			r.Hostnames = append(r.Hostnames, h)
		}
	}
	for range 1 + rnd.IntN(3) {
		rule := gateway.HTTPRule{Backends: backends("a")}
		for range 1 + rnd.IntN(3) {
			m := gateway.HTTPMatch{Method: pick(rnd, "", "", "GET", "POST")}
			m.Path = gateway.StringMatch{Type: pick(rnd, "Exact", "PathPrefix"), Value: pick(rnd, "/", "/a", "/a/b", "/a/", "/ab", "/a/b/c")}
			for _, h := range []string{"A", "B"} {
				if rnd.IntN(4) == 0 {
					m.Headers = append(m.Headers, gateway.NamedMatch{Name: h, StringMatch: gateway.StringMatch{Value: pick(rnd, "1", "2")}})
				}
			}
			if rnd.IntN(4) == 0 {
				m.Query = append(m.Query, gateway.NamedMatch{Name: "q", StringMatch: gateway.StringMatch{Value: "1"}})
			}
			rule.Matches = append(rule.Matches, m)
		}
		r.Rules = append(r.Rules, rule)
	}
	return r
}

func randomGateway(rnd *rand.Rand) *gateway.Gateway {
	g := &gateway.Gateway{Class: "fairway", Bind: map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 80}: 20000}}
	g.Name = api.Name{Namespace: "infra", Name: "gw"}
	seen := map[string]bool{}
	for i := range 4 {
		if h := randomHost(rnd); !seen[h] {
			seen[h] = true
			g.Listeners = append(g.Listeners, gateway.ListenerSpec{Name: fmt.Sprint("l", i), Port: 80, Protocol: "HTTP", Hostname: h})
		}
	}
	return g
}

func randomRequest(rnd *rand.Rand) *request {
	r := &request{method: pick(rnd, "GET", "POST"), host: pick(rnd, "a.com", "b.a.com", "c.b.a.com", "d.c.b.a.com", "x.org", "y.com", "z.net")}
	r.path, r.client = pick(rnd, "/", "/a", "/a/", "/a/b", "/ab", "/a/b/c/d", "/abc"), netip.MustParseAddr("192.0.2.1")
	r.header, r.query = map[string]string{}, map[string][]string{}
	for _, h := range []string{"A", "B"} {
		if rnd.IntN(2) == 0 {
			r.header[h] = pick(rnd, "1", "2")
		}
	}
	if rnd.IntN(2) == 0 {
		r.query["q"] = []string{"1"}
	}
	return r
}

// TestLookupAgainstReference compares Lookup with the simple reference, for random objects that change one by one. A
// Compiler that saw all changes must give the same answers and reports as a new one.
func TestLookupAgainstReference(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		x := parse(t, "class fairway\nservice infra/a 8080\n")
		g := randomGateway(rnd)
		objects := map[gateway.Ref]gateway.Object{g.Ref(): g}
		for _, o := range x.objects {
			objects[o.Ref()] = o
		}
		c := gateway.NewCompiler(gateway.Settings{})
		for _, o := range objects {
			c.Set(o)
		}
		for range 30 {
			route := randomRoute(rnd, fmt.Sprint("r", rnd.IntN(8)))
			switch rnd.IntN(8) {
			case 0:
				g = randomGateway(rnd)
				objects[g.Ref()] = g
				c.Set(g)
			case 1, 2:
				delete(objects, route.Ref())
				c.Delete(route.Ref())
			default:
				objects[route.Ref()] = route
				c.Set(route)
			}
			var list []gateway.Object
			for _, o := range objects {
				list = append(list, o)
			}
			fresh := compiled(list)
			table := c.Table()
			if c.Table() != table {
				t.Fatal("a Table without a change is a new one")
			}
			if got, want := reportAnswer(c), reportAnswer(fresh); got != want {
				t.Fatalf("seed %d: reports\n%s\nwant\n%s", seed, got, want)
			}
			for range 30 {
				r := randomRequest(rnd)
				want := slowLookup(list, g, r)
				d := table.Lookup(20000, r)
				got, _, _ := strings.Cut(decision(d), " [")
				if got != want {
					t.Fatalf("seed %d: %s %s%s %v %v: %s, want %s", seed, r.method, r.host, r.path, r.header, r.query, got, want)
				}
				if e := table.Explain(20000, r); d.Rule != nil && (e.Rule != d.Rule || e.Candidates[0].Rule != d.Rule) {
					t.Fatalf("seed %d: Explain has another rule than Lookup", seed)
				}
				if !reflect.DeepEqual(d.Rule, fresh.Table().Lookup(20000, r).Rule) {
					t.Fatalf("seed %d: a new Compiler has another rule", seed)
				}
			}
		}
	}
}
