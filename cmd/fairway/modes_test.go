package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

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

func tableOf(fakes ...*fake) modeTable {
	var t modeTable
	for _, f := range fakes {
		t = append(t, mode{f.name, func(*config.Config) (datapath.Datapath, error) { return f, nil }})
	}
	return t
}

func TestChoose(t *testing.T) {
	broken, fine, other := &fake{name: "broken", probe: errors.New("no such kernel")}, &fake{name: "fine"}, &fake{name: "other"}
	table := tableOf(broken, fine, other)
	for _, c := range []struct{ mode, want, fails, says string }{
		{"other", "other", "", ""},
		{"broken", "", "proxy mode broken does not work here: no such kernel", ""},
		{"auto", "fine", "", "it is the best that works here; not broken (no such kernel)"},
		{"magic", "", `proxy mode "magic" is not one that carries Services [choose one of broken, fine, other]`, ""},
	} {
		var log bytes.Buffer
		cfg := &config.Config{Mode: c.mode}
		dp, err := table.choose(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), cfg)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: error %v, want %q", c.mode, err, c.fails)
			}
			continue
		}
		if err != nil || dp.Info().Name != c.want || cfg.Mode != c.want || !strings.Contains(log.String(), c.says) {
			t.Errorf("%s: chose %v as %q (%v), and said %s", c.mode, dp, cfg.Mode, err, &log)
		}
	}
	_, err := tableOf(broken).choose(t.Context(), slog.New(slog.DiscardHandler), &config.Config{Mode: "auto"})
	if err == nil || !strings.Contains(err.Error(), "no proxy mode works here: broken (no such kernel)") {
		t.Errorf("nothing works: %v", err)
	}
}

func TestOthersAndFound(t *testing.T) {
	broken := &fake{name: "broken", probe: errors.New("no such kernel"), there: true}
	fine, other, empty := &fake{name: "fine", there: true}, &fake{name: "other", there: true}, &fake{name: "empty"}
	table := tableOf(broken, fine, other, empty)
	log := slog.New(slog.DiscardHandler)
	named := func(all []datapath.Datapath) string {
		var names []string
		for _, dp := range all {
			names = append(names, dp.Info().Name)
		}
		return strings.Join(names, " ")
	}
	if got := named(table.others(t.Context(), log, &config.Config{}, "fine")); got != "other empty" {
		t.Errorf("the others of fine are %q", got)
	}
	all, err := table.found(t.Context(), &config.Config{})
	if err != nil || named(all) != "fine other" {
		t.Errorf("found %q, %v", named(all), err)
	}
	_, err = tableOf(broken).found(t.Context(), &config.Config{})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("nothing can be looked at: %v", err)
	}
}

func TestCleanupOfAllModes(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	absent := &fake{name: "absent", probe: errors.New("no program"), clean: errors.New("no program")}
	if err := tableOf(absent, &fake{name: "fine"}).cleanup(t.Context(), log, &config.Config{}); err != nil {
		t.Errorf("a mode that does not work here has nothing to clean: %v", err)
	}
	stuck := &fake{name: "stuck", clean: errors.New("busy")}
	if err := tableOf(stuck, &fake{name: "fine"}).cleanup(t.Context(), log, &config.Config{}); err == nil || !strings.Contains(err.Error(), "mode stuck: busy") {
		t.Errorf("error %v", err)
	}
}

// TestEveryMode: what the configuration knows is in the table, and the other way round.
func TestEveryMode(t *testing.T) {
	want := map[string]bool{}
	for _, name := range config.Modes() {
		want[name] = name != config.ModeAuto && name != config.ModeNone
	}
	for _, m := range modes() {
		if !want[m.name] {
			t.Errorf("mode %q is in the table twice, or not in the configuration", m.name)
		}
		want[m.name] = false
		dp, err := m.open(&config.Config{Mode: m.name, MasqueradeBit: config.DefaultMasqueradeBit})
		if err != nil {
			t.Fatalf("mode %s: %v", m.name, err)
		}
		if dp.Info().Name != m.name || !dp.Info().Capabilities.Algorithms.Has(service.Random) {
			t.Errorf("mode %q has a datapath %q with algorithms %b", m.name, dp.Info().Name, dp.Info().Capabilities.Algorithms)
		}
		dp.Close()
	}
	for name, missing := range want {
		if missing {
			t.Errorf("mode %s is not in the table", name)
		}
	}
}

// TestDumpAndCleanup: what a mode wrote is found without naming it, and goes.
func TestDumpAndCleanup(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			cfg := &config.Config{Mode: m.name, MasqueradeBit: config.DefaultMasqueradeBit}
			err := testnet.NewNamespace(t, "node").Do(func() error {
				dp, err := m.works(t.Context(), cfg)
				if err != nil {
					t.Skipf("mode %s does not work in this kernel: %v", m.name, err)
				}
				defer dp.Close()
				fails(t, "no mode has rules on this node", "dump")
				if _, err := dp.Sync(t.Context(), example()); err != nil {
					return err
				}
				prints(t, "mode "+m.name+"\n", "dump")
				prints(t, "10.96.0.8:80/TCP", "dump", "--proxy-mode", m.name, "--service", "default/web")
				prints(t, "", "agent", "--cleanup")
				fails(t, "no mode has rules on this node", "dump")
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// example is a table of one Service.
func example() *service.Table {
	to := &service.Route{
		Action: service.Forward, Masquerade: service.MasqueradeOffCluster,
		Endpoints: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.5:8080"), Local: true}},
	}
	return service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*service.Frontend{{
		Addr: netip.MustParseAddrPort("10.96.0.8:80"), Proto: service.TCP,
		Service:  service.PortName{Name: service.Name{Namespace: "default", Name: "web"}, Port: "http"},
		Internal: to, External: to,
	}})
}

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(t.Context(), env{stdin: strings.NewReader(""), stdout: &out, stderr: &err}, args)
	return code, out.String(), err.String()
}

func prints(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, out, err := command(t, args...); code != 0 || !strings.Contains(out, want) {
		t.Errorf("fairway %v: status %d, want %q in\n%s%s", args, code, want, out, err)
	}
}

func fails(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, out, err := command(t, args...); code != 1 || !strings.Contains(err, want) || strings.Count(err, "\n") != 1 {
		t.Errorf("fairway %v: status %d, want %q in\n%s%s", args, code, want, out, err)
	}
}
