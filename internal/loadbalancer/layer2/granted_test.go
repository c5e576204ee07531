package layer2

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestGranted: a speaker reports whether the voters grant, and which voters are silent if they do not.
func TestGranted(t *testing.T) {
	l := newLANOf(t, 3, t.TempDir())
	l.grants(0, "")
	first := l.grants(1, "")
	l.ready(0, "ready")
	l.signal(1, syscall.SIGSTOP)
	l.signal(2, syscall.SIGSTOP)
	l.grants(0, "no majority of the 3 voters grants it: node-2, node-3 are silent [do UDP packets of the speakers' port reach them?]")
	l.ready(0, "no majority of the voters has granted")
	l.signal(1, syscall.SIGCONT)
	l.grants(0, "")
	l.ready(0, "ready")
	l.signal(2, syscall.SIGCONT)
	if again := l.grants(1, ""); again.Since.Before(first.Since) || !first.Up {
		t.Errorf("granted since %v, and then since %v", first.Since, again.Since)
	}
}

// grants waits until node i reports that it has no grant for this reason; empty: that it has a grant.
func (l *lan) grants(i int, reason string) (g announce.Standing) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		g = announce.Standing{}
		text, err := os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name+".grant"))
		if err == nil {
			must(l.t, json.Unmarshal(text, &g))
		}
		if err == nil && g.Node == l.nodes[i].Name && g.Reason == reason && g.Up == (reason == "") && !g.Since.IsZero() {
			return g
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s says %s, want the reason %q", l.nodes[i].Name, text, reason)
		}
	}
}

// ready waits until node i reports this about its readiness.
func (l *lan) ready(i int, want string) {
	l.t.Helper()
	var text []byte
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if text, _ = os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name+".ready")); strings.Contains(string(text), want) {
			return
		}
	}
	l.t.Fatalf("%s says %s, want %q", l.nodes[i].Name, text, want)
}
