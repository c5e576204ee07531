package nftables

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

var update = flag.Bool("update", false, "write testdata again")

// TestGolden: the elements and load-balancing chains of each scenario, in an empty kernel.
func TestGolden(t *testing.T) {
	scenario.Golden(t, ".elements", *update, func(s *scenario.Scenario) (string, error) {
		d, err := New(Config{CountTraffic: true})
		if err != nil {
			return "", err
		}
		return d.elements(s.Offer(d.Info().Capabilities.Algorithms).Table()), nil
	})
}

// elements returns the Writes of the first Sync of a table into an empty kernel.
func (d *Datapath) elements(table *service.Table) string {
	d.state = newState()
	j := syncJob{Datapath: d, stats: &datapath.Stats{Full: true}, shrunk: map[affinityID]bool{}}
	var p plan
	settings := nodeSettingsOf(table.Settings)
	p.settings(&nodeSettings{}, &settings)
	var changes []service.Change
	for _, f := range table.Sorted() {
		changes = append(changes, service.Change{New: f})
	}
	j.addressSets(changes)
	for _, c := range changes {
		is := d.state.render(d.state.at(c.Key()), c.New, true)
		d.state.set(c.Key(), is)
		p.frontend(c.Key(), &frontendState{}, is)
	}
	var lines []string
	for v := range d.state.chainUses {
		lines = append(lines, fmt.Sprintf("chain %s, verdict %v\n", v.chainName(), v))
	}
	for _, w := range slices.Concat(j.addresses.writes(), p.writes()) {
		lines = append(lines, w.String()+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
