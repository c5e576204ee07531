package conntrack

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestTune writes only settings that differ, never makes the table smaller, and continues after failures.
func TestTune(t *testing.T) {
	all := Tuning{
		Max: 100_000, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour, UDP: 20 * time.Second, UDPStream: 2 * time.Minute,
		TCPBeLiberal: true,
	}
	fresh := map[string]string{
		"max": "65536", "hashsize": "16384", "tcp_timeout_established": "432000", "tcp_timeout_close_wait": "60",
		"udp_timeout": "30", "udp_timeout_stream": "120", "tcp_be_liberal": "0",
	}
	for name, c := range map[string]struct {
		tuning Tuning
		change map[string]string // relative to fresh; "-" removes a file
		want   map[string]string // in addition to change
		fails  string
	}{
		"all": {tuning: all, want: map[string]string{
			"max": "100000", "hashsize": "25000", "tcp_timeout_established": "86400", "tcp_timeout_close_wait": "3600",
			"udp_timeout": "20", "udp_timeout_stream": "120", "tcp_be_liberal": "1",
		}},
		"nothing":        {},
		"larger already": {tuning: Tuning{Max: 1000}},
		"room, but few buckets": {tuning: Tuning{Max: 100_000}, change: map[string]string{"max": "200000"}, want: map[string]string{
			"max": "200000", "hashsize": "25000",
		}},
		"no buckets to be seen": {tuning: Tuning{Max: 100_000}, change: map[string]string{"hashsize": "-"}, want: map[string]string{"max": "100000"}},
		"one is missing": {tuning: Tuning{UDP: time.Minute, UDPStream: time.Hour}, change: map[string]string{"udp_timeout": "-"},
			want: map[string]string{"udp_timeout_stream": "3600"}, fails: "nf_conntrack_udp_timeout to 60: no such file or directory"},
	} {
		root := t.TempDir()
		path := func(name string) string {
			if name == "hashsize" {
				return filepath.Join(root, hashSize)
			}
			return filepath.Join(root, parameter("nf_conntrack_"+name))
		}
		want := map[string]string{}
		for _, values := range []map[string]string{fresh, c.change} {
			for name, value := range values {
				want[name] = value
			}
		}
		for name, value := range want {
			if err := os.MkdirAll(filepath.Dir(path(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if value != "-" {
				if err := os.WriteFile(path(name), []byte(value+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		for name, value := range c.want {
			want[name] = value
		}
		err := c.tuning.apply(slog.New(slog.DiscardHandler), root)
		if (err != nil) != (c.fails != "") || err != nil && (!strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error %v, want %q", name, err, c.fails)
		}
		for setting, value := range want {
			got, err := os.ReadFile(path(setting))
			if value == "-" && err == nil || value != "-" && strings.TrimSpace(string(got)) != value {
				t.Errorf("%s: %s is %q, want %s", name, setting, got, value)
			}
		}
	}
}

// TestTuneKernel: the kernel accepts the timeouts, also in a separate network namespace, where the table size belongs
// to the host.
func TestTuneKernel(t *testing.T) {
	ns := testnet.NewNamespace(t, "node")
	for _, seconds := range []time.Duration{3601, 3602} {
		err := ns.Do(func() error {
			return Tuning{TCPEstablished: seconds * time.Second, TCPCloseWait: seconds * time.Second, UDP: seconds * time.Second,
				UDPStream: seconds * time.Second, TCPBeLiberal: true}.Apply(slog.New(slog.DiscardHandler))
		})
		if err != nil {
			t.Error(err)
		}
		err = ns.Do(func() error {
			k := sysctls{root: "/"}
			for _, name := range []string{"tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "udp_timeout_stream"} {
				if got, err := k.get(parameter("nf_conntrack_" + name)); err != nil || got != int(seconds) {
					t.Errorf("%s is %d, %v; want %d", name, got, err, seconds)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	err := ns.Do(func() error {
		k := sysctls{root: "/"}
		now, err := k.get(parameter("nf_conntrack_max"))
		if err != nil {
			return err
		}
		if err := (Tuning{Max: now}).Apply(slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("as it is: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
