package layer2

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// told waits until these speakers report the nodes with these indices as owners of the addresses.
func (l *lan) told(owners []int, by ...int) {
	l.t.Helper()
	for _, i := range by {
		var text []byte
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			all := map[netip.Addr]string{}
			var err error
			if text, err = os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name)); err == nil {
				err = json.Unmarshal(text, &all)
			}
			right := err == nil && len(all) == len(vips)
			for k, a := range vips {
				right = right && all[a] == l.nodes[owners[k]].Name
			}
			if right {
				break
			}
			if time.Now().After(end) {
				l.t.Fatalf("%s says %s, want nodes %v", l.nodes[i].Name, text, owners)
			}
		}
	}
}

// TestOwners: each speaker reports the node that announces an egress address, also after that node's death.
func TestOwners(t *testing.T) {
	l := newLANOf(t, 3, t.TempDir())
	best := []int{l.best(vips[0]), l.best(vips[1])}
	l.told(best, 0, 1, 2)
	l.kill(best[0])
	var rest []int
	for i := range l.nodes {
		if i != best[0] {
			rest = append(rest, i)
		}
	}
	now := slices.Clone(best)
	for k, a := range vips {
		now[k] = l.owner(a, best[0])
	}
	l.told(now, rest...)
}
