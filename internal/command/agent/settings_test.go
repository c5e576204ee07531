package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/operate/status"
)

// TestSettings changes settings under a running agent: bad ones are refused and named, good
// ones end the run with what the next one has.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(key, value string) {
		t.Helper()
		part := filepath.Join(dir, "part")
		err := errors.Join(os.WriteFile(part, []byte(value), 0o600), os.Rename(part, filepath.Join(dir, key)))
		if err != nil {
			t.Fatal(err)
		}
	}
	write("CLUSTER_CIDR", "10.1.0.0/16\n")
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	if err := fs.Parse([]string{"--settings-dir", dir, "--cluster-cidr", "10.0.0.0/16", "--hostname-override", "node-1"}); err != nil {
		t.Fatal(err)
	}
	f, err := newFollower(command.Env{}, flags)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Load()
	if err != nil || cfg.ClusterCIDRs[0].String() != "10.1.0.0/16" {
		t.Fatalf("%v, %v: want what the directory says", cfg, err)
	}
	f.log, f.every = slog.New(slog.DiscardHandler), time.Millisecond
	var board status.Board
	events := make(chan string, 10)
	ended := make(chan error)
	go func() {
		ended <- f.run(t.Context(), cfg, &board, func(node, reason, message string) { events <- node + " " + reason + " " + message })
	}()
	write("CLUSTER_CIDR", "10.2.0.0")
	if e := <-events; !strings.HasPrefix(e, "node-1 SettingsRefused --cluster-cidr: \"10.2.0.0\" is not a CIDR") {
		t.Errorf("the event is %q", e)
	}
	if c := board.Conditions(); len(c) != 1 || c[0].Reason != status.SettingsRefused {
		t.Errorf("the status has %v", c)
	}
	write("CLUSTER_CIDR", "10.3.0.0/16")
	var changed settingsChanged
	if err := <-ended; !errors.As(err, &changed) || changed.cfg.ClusterCIDRs[0].String() != "10.3.0.0/16" {
		t.Errorf("the run has ended with %v, %v", err, changed.cfg)
	}
	if next, ok := f.next(changed, cfg, cfg); !ok || next != changed.cfg {
		t.Errorf("the next run has %v", next)
	}
	// The next one cannot begin: the former settings count, and the new ones are not tried again and again.
	cannot := errors.New("no such table")
	if next, ok := f.next(cannot, changed.cfg, cfg); !ok || next != cfg || !errors.Is(f.why, cannot) {
		t.Errorf("after a run that could not begin: %v, %v", next, f.why)
	}
	if cfg := f.look(t.Context(), cfg); cfg != nil {
		t.Errorf("the refused settings are taken: %v", cfg)
	}
	if _, ok := f.next(cannot, cfg, cfg); ok {
		t.Error("an agent that has begun and failed begins again with the same settings")
	}
	// An API server that does not answer is refused before the run ends.
	write("FAIRWAY_API_SERVER", "https://127.0.0.1:1")
	if cfg := f.look(t.Context(), cfg); cfg != nil || f.why == nil {
		t.Errorf("settings with a dead API server are taken: %v", cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.run(ctx, cfg, &board, func(string, string, string) {}); err != nil {
		t.Errorf("a run that is told to end returns %v", err)
	}
}
