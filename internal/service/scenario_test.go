package service_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

var update = flag.Bool("update", false, "write the golden tables of testdata again")

func scenarios(t *testing.T) []*scenario.Scenario {
	t.Helper()
	all, err := scenario.Load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every behaviour of the policy: the objects, the resulting table and problems, and the table's effect on packets.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			table := s.Table()
			golden(t, s, "table", table.String())
			golden(t, s, "problems", problems(table))
			for _, p := range s.Packets {
				got, ok := scenario.Predict(table, p)
				if !ok && p.Want.Action != service.Reject {
					t.Errorf("packet %s: the table says nothing about it", p.Text)
				}
				if ok && !p.Agrees(got) {
					t.Errorf("packet %s: the table says %v", p.Text, got)
				}
			}
		})
	}
}

func golden(t *testing.T, s *scenario.Scenario, name, got string) {
	t.Helper()
	want, _ := s.Golden(name)
	if got == want {
		return
	}
	if *update {
		if err := s.Update(name, got); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s differs (go test -update writes it)\n--- got\n%s--- want\n%s", name, got, want)
}

func problems(t *service.Table) string {
	var lines []string
	for e := range t.Entries() {
		for _, p := range e.Problems {
			lines = append(lines, fmt.Sprintf("%v %s: %s\n", e.Name, p.Reason, p.Message))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// The table does not depend on the order of the objects, and the differences between tables add up to it.
func TestOrders(t *testing.T) {
	rng, orders := testnet.Random(t), 0
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			want := s.Table()
			for name, events := range s.Orders(rng) {
				orders++
				state := scenario.NewState(s.Facts)
				shadow := newShadow(t)
				for _, e := range events {
					state.Apply(e)
					if e.Flush {
						shadow.follow(state.Table())
					}
				}
				got := state.Table()
				shadow.follow(got)
				if d := service.Diff(want, got); len(d) > 0 || want.String() != got.String() {
					t.Fatalf("%s: %d changes\n--- got\n%s--- want\n%s", name, len(d), got.String(), want.String())
				}
				if a, b := problems(want), problems(got); a != b {
					t.Fatalf("%s: problems\n--- got\n%s--- want\n%s", name, b, a)
				}
			}
		})
	}
	t.Logf("%d orders", orders)
}

// A shadow is the state of a datapath that applies only the differences from Diff.
type shadow struct {
	t    *testing.T
	last *service.Table
	held map[service.Key]*service.Frontend
}

func newShadow(t *testing.T) *shadow {
	return &shadow{t: t, last: &service.Table{}, held: map[service.Key]*service.Frontend{}}
}

// follow applies the difference to the next table and compares everything.
func (s *shadow) follow(next *service.Table) {
	s.t.Helper()
	before := s.last.String()
	for _, c := range service.Diff(s.last, next) {
		if (c.Old == nil) == (s.held[c.Key()] != nil) || c.Old != nil && !c.Old.Equal(s.held[c.Key()]) {
			s.t.Fatalf("change of %v: old is %v, but %v is held", c.Key(), c.Old, s.held[c.Key()])
		}
		if c.New == nil {
			delete(s.held, c.Key())
		} else {
			s.held[c.Key()] = c.New
		}
	}
	n := 0
	for f := range next.Frontends() {
		n++
		if !f.Equal(s.held[f.Key()]) {
			s.t.Fatalf("%v: the table has %v, the changes made %v", f.Key(), f, s.held[f.Key()])
		}
	}
	if n != len(s.held) {
		s.t.Fatalf("the table has %d frontends, the changes made %d", n, len(s.held))
	}
	if after := s.last.String(); after != before {
		s.t.Fatalf("an old table changed\n--- was\n%s--- is\n%s", before, after)
	}
	s.last = next
}
