package userspace

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

var update = flag.Bool("update", false, "write testdata again")

// TestGolden: the elements of each scenario of the policy, next to the constant program, in an empty kernel.
func TestGolden(t *testing.T) {
	scenario.Golden(t, ".elements", *update, func(s *scenario.Scenario) (string, error) {
		d, err := New(Config{})
		if err != nil {
			return "", err
		}
		table := s.Offer(d.Info().Capabilities.Algorithms).Table()
		p := fullChangeset(&kernelState{}, table)
		p.shared(service.Settings{}, table.Settings, ownedAddresses{{}, {}}, d.allChanges(table), true)
		var lines []string
		for _, w := range p.writes() {
			lines = append(lines, w.String()+"\n")
		}
		slices.Sort(lines)
		return strings.Join(lines, ""), nil
	})
}
