package networkpolicy_test

import (
	"os"
	"reflect"
	"strconv"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// check compares the table with Evaluate, for random packets, and returns how many that were.
func check(t *testing.T, w *policytest.World, table *networkpolicy.Table) (n int) {
	t.Helper()
	protos := []api.Proto{api.TCP, api.UDP, api.SCTP, 1}
	for range 80 {
		p := networkpolicy.Packet{Src: w.Addr(), Dst: w.Addr(), Proto: protos[w.IntN(4)], Port: w.FirstPort + uint16(w.IntN(8))}
		if p.Src.Is4() != p.Dst.Is4() {
			continue
		}
		p.ToNode = w.IntN(6) == 0
		n++
		got := networkpolicy.Lookup(table, p)
		for d, v := range []networkpolicy.Verdict{got.Egress, got.Ingress} {
			asked := w.Peering(p, networkpolicy.Direction(d))
			if asked == nil || asked.Pod.Node != "here" {
				if v.Isolated {
					t.Fatalf("%v: the end of %v is isolated, and is no pod of this node", p, networkpolicy.Direction(d))
				}
				continue
			}
			want := w.Evaluate(*asked)
			rule := table.Rules[v.Rule]
			if v.Allows() != want.Allowed() || v.Isolated != (len(want.Isolates) > 0 && !asked.Exempt) {
				t.Fatalf("%+v, %v of %v: table %+v (%v), objects %+v", p, asked.Direction, asked.Pod.Name, v, rule, want)
			}
			if want.Rule != nil && want.Rule.Tier != networkpolicy.Namespaced && rule != *want.Rule {
				t.Fatalf("%+v, %v of %v: the table says that %v decides, the objects %v", p, asked.Direction, asked.Pod.Name, rule, *want.Rule)
			}
		}
	}
	return n
}

// replay applies changes to a copy of a table, as a kernel would.
func replay(t *testing.T, to, want *networkpolicy.Table, ch *networkpolicy.Changes) {
	t.Helper()
	apply(t, to.Classes, ch.Classes)
	apply(t, to.Rules, ch.Rules)
	apply(t, to.Sandboxes, ch.Sandboxes)
	apply(t, to.Ports, ch.Ports)
	apply(t, to.Prefixes, ch.Prefixes)
	for d := range to.Isolated {
		apply(t, to.Isolated[d], ch.Isolated[d])
		apply(t, to.Cluster[d], ch.Cluster[d])
		apply(t, to.Grants[d], ch.Grants[d])
		apply(t, to.Views[d], ch.Views[d])
	}
	if ch.Networks || len(to.Networks)+len(want.Networks) == 0 {
		to.Networks = want.Networks
	}
	if !reflect.DeepEqual(to, want) {
		t.Fatalf("after the changes the table is\n%+v\nwant\n%+v", to, want)
	}
}

func apply[K comparable, V any](t *testing.T, m map[K]V, changes map[K]networkpolicy.Change[V]) {
	t.Helper()
	var none V
	for k, c := range changes {
		if was := m[k]; !reflect.DeepEqual(was, c.From) || reflect.DeepEqual(c.From, c.To) {
			t.Fatalf("%v changes from %v to %v, and was %v", k, c.From, c.To, was)
		}
		if reflect.DeepEqual(c.To, none) {
			delete(m, k)
		} else {
			m[k] = c.To
		}
	}
}

// checkCosts compares the elements of each namespace with what the limit counts. A grant of all ports that is cut by
// grants of single ports can be twice as many segments.
func checkCosts(t *testing.T, c *networkpolicy.Compiler, table *networkpolicy.Table) {
	t.Helper()
	elements, views := map[string]int{}, map[networkpolicy.View]string{}
	for d := range table.Grants {
		for target, segments := range table.Grants[d] {
			elements[c.NamespaceOf(target)] += len(segments)
		}
		for a, v := range table.Views[d] {
			views[v] = c.NamespaceOf(networkpolicy.Target{Local: a})
		}
	}
	for p := range table.Prefixes {
		elements[views[p.View]]++
	}
	costs := c.GrantCosts()
	for namespace, n := range elements {
		if n > 2*costs[namespace] {
			t.Fatalf("namespace %q has %d elements, and the limit counts %d", namespace, n, costs[namespace])
		}
	}
}

// worlds is how many clusters the random test makes: FAIRWAY_POLICY_WORLDS=N for others.
func worlds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("FAIRWAY_POLICY_WORLDS")
	if text == "" {
		return 12
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Random objects, in random steps: the table says what the objects say, its changes are what
// changed, and it is that of a Compiler which begins with the same objects.
func TestRandom(t *testing.T) {
	r := testnet.Random(t)
	cases := 0
	for range worlds(t) {
		w := policytest.New(r)
		w.Tiers = r.IntN(3) > 0
		c := networkpolicy.New("here")
		kernel, _ := networkpolicy.New("here").Compile()
		for range 60 {
			for range 1 + w.IntN(3) {
				w.Step(c)
			}
			table, changes := c.Compile()
			replay(t, kernel, table, changes)
			c.Take()
			cases += check(t, w, table)
			if !w.Tiers {
				checkCosts(t, c, table)
			}
		}
		want, _ := policytest.Compiler("here", &w.Cluster).Compile()
		have, _ := c.Compile()
		if len(have.Networks)+len(want.Networks) == 0 {
			have.Networks = want.Networks
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("after many steps\n%+v\nat once\n%+v", have, want)
		}
	}
	t.Logf("%d packets", cases)
}
