package conntrack

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestRoom: a nearly full table is reported once, and so is its end.
func TestRoom(t *testing.T) {
	var log testnet.Log
	var events, states []string
	r := &Room{
		Log: slog.New(slog.NewTextHandler(&log, nil)), root: t.TempDir(),
		Event: func(reason, _ string) { events = append(events, reason) },
		Now:   func(message string) { states = append(states, message) },
	}
	if _, _, ok := r.read(); ok {
		t.Error("a kernel without conntrack has a table")
	}
	for _, now := range []int{10, 89, 90, 100, 85, 95, 79, 85, 91} {
		for name, n := range map[string]int{"nf_conntrack_count": now, "nf_conntrack_max": 100} {
			path := filepath.Join(r.root, parameter(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strconv.Itoa(n)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		flows, limit, ok := r.read()
		if !ok || flows != now || limit != 100 {
			t.Fatalf("read %d of %d, %t", flows, limit, ok)
		}
		r.report(flows, limit)
	}
	if !slices.Equal(events, []string{"ConntrackFull", "ConntrackFull"}) || len(states) != 3 || states[0] == "" || states[1] != "" || states[2] == "" {
		t.Errorf("events %q, states %q", events, states)
	}
	if log.Count("has 90 of 100 flows") != 1 || log.Count("has room again") != 1 {
		t.Errorf("log:\n%s", &log)
	}
}

// TestRoomOfKernel: the kernel reports the number of flows in the file that Room reads.
func TestRoomOfKernel(t *testing.T) {
	err := testnet.New(t).Node("node").Do(func() error {
		if flows, limit, ok := new(Room).read(); !ok || flows < 0 || limit < 1000 {
			t.Errorf("%d of %d flows, %t", flows, limit, ok)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
