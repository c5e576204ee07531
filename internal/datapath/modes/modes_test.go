package modes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// fake is a datapath that works if probe says so.
type fake struct {
	datapath.Datapath
	name  string
	probe error
	clean error
	there bool
}

func (f *fake) Info() datapath.Info         { return datapath.Info{Name: f.name} }
func (f *fake) Probe(context.Context) error { return f.probe }
func (f *fake) Adopt(context.Context) (datapath.Adopted, error) {
	return datapath.Adopted{Table: &service.Table{}, Found: f.there}, nil
}
func (f *fake) Cleanup(context.Context) error { return f.clean }
func (f *fake) Close()                        {}

func registry(fakes ...*fake) Registry {
	var r Registry
	for _, f := range fakes {
		r = append(r, Mode{f.name, func(Options) (datapath.Datapath, error) { return f, nil }})
	}
	return r
}

func TestChoose(t *testing.T) {
	broken, fine, other := &fake{name: "broken", probe: errors.New("no such kernel")}, &fake{name: "fine"}, &fake{name: "other"}
	table := registry(broken, fine, other)
	for _, c := range []struct{ mode, want, fails, says string }{
		{"other", "other", "", ""},
		{"broken", "", "proxy mode broken does not work here: no such kernel", ""},
		{"auto", "fine", "", "it is the best that works here; not broken (no such kernel)"},
		{"magic", "", `proxy mode "magic" is not one that carries Services [choose one of broken, fine, other]`, ""},
	} {
		var log bytes.Buffer
		dp, err := table.Choose(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), c.mode, Options{})
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: error %v, want %q", c.mode, err, c.fails)
			}
			continue
		}
		if err != nil || dp.Info().Name != c.want || !strings.Contains(log.String(), c.says) {
			t.Errorf("%s: chose %v (%v), and said %s", c.mode, dp, err, &log)
		}
	}
	_, err := registry(broken).Choose(t.Context(), slog.New(slog.DiscardHandler), "auto", Options{})
	if err == nil || !strings.Contains(err.Error(), "no proxy mode works here: broken (no such kernel)") {
		t.Errorf("nothing works: %v", err)
	}
}

func TestOthersAndFound(t *testing.T) {
	broken := &fake{name: "broken", probe: errors.New("no such kernel"), there: true}
	fine, other, empty := &fake{name: "fine", there: true}, &fake{name: "other", there: true}, &fake{name: "empty"}
	table := registry(broken, fine, other, empty)
	log := slog.New(slog.DiscardHandler)
	named := func(all []datapath.Datapath) string {
		var names []string
		for _, dp := range all {
			names = append(names, dp.Info().Name)
		}
		return strings.Join(names, " ")
	}
	if got := named(table.Others(t.Context(), log, "fine", Options{})); got != "other empty" {
		t.Errorf("the others of fine are %q", got)
	}
	all, err := table.Found(t.Context(), Options{})
	if err != nil || named(all) != "fine other" {
		t.Errorf("found %q, %v", named(all), err)
	}
	_, err = registry(broken).Found(t.Context(), Options{})
	if err == nil {
		t.Errorf("nothing can be looked at: %v", err)
	}
}

func TestCleanupOfAllModes(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	absent := &fake{name: "absent", probe: errors.New("no program"), clean: errors.New("no program")}
	if err := registry(absent, &fake{name: "fine"}).Cleanup(t.Context(), log, Options{}); err != nil {
		t.Errorf("a mode that does not work here has nothing to clean: %v", err)
	}
	stuck := &fake{name: "stuck", clean: errors.New("busy")}
	if err := registry(stuck, &fake{name: "fine"}).Cleanup(t.Context(), log, Options{}); err == nil || !strings.Contains(err.Error(), "mode stuck: busy") {
		t.Errorf("error %v", err)
	}
}

// TestAll: the registry has exactly the modes that package datapath names, in that order.
func TestAll(t *testing.T) {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
		dp, err := m.Open(Options{})
		if err != nil {
			t.Fatalf("mode %s: %v", m.Name, err)
		}
		info := dp.Info()
		if info.Name != m.Name || !info.Capabilities.Algorithms.Has(service.Random) || !slices.Contains(info.Capabilities.Protocols, api.TCP) {
			t.Errorf("mode %s has a datapath that says of itself %+v", m.Name, info)
		}
		dp.Close()
	}
	if !slices.Equal(names, datapath.Modes()) {
		t.Errorf("the registry has %v, package datapath names %v", names, datapath.Modes())
	}
}

// TestUserspaceMark: the bit that means "masquerade" on this node never means "to the proxy".
func TestUserspaceMark(t *testing.T) {
	m, err := All().find(datapath.Userspace)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 32 {
		dp, err := m.Open(Options{Mark: 1 << bit})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(dp.Info().Program, fmt.Sprintf("mark set meta mark | %#x ", 1<<bit)) {
			t.Errorf("masquerade bit %d: the proxy has the same", bit)
		}
		dp.Close()
	}
}
