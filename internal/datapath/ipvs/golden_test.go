package ipvs

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

var update = flag.Bool("update", false, "write testdata again")

// TestGolden: the elements and virtual servers of each scenario of the policy, next to the constant program, in an
// empty kernel.
func TestGolden(t *testing.T) {
	scenario.Golden(t, ".elements", *update, func(s *scenario.Scenario) (string, error) {
		d, err := New(Config{})
		if err != nil {
			return "", err
		}
		d.state = newState()
		table := s.Offer(d.Info().Capabilities.Algorithms).Table()
		var changes []service.Change
		for _, f := range table.Sorted() {
			changes = append(changes, service.Change{New: f})
		}
		r, err := d.render(table, changes, true)
		if err != nil {
			return "", err
		}
		var lines []string
		for _, w := range r.writes {
			lines = append(lines, w.String()+"\n")
		}
		for id, v := range r.servers {
			lines = append(lines, fmt.Sprintf("virtual server %v %s persistent %d\n", id, v.sched, v.persist))
			for a, weight := range v.reals {
				lines = append(lines, fmt.Sprintf("virtual server %v: real server %v weight %d\n", id, a, weight))
			}
		}
		slices.Sort(lines)
		return strings.Join(lines, ""), nil
	})
}
