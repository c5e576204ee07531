package layer2

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestConflict: a new address that another machine has is not announced, and its Service has an event with the
// machine's MAC. The address stays so while the machine has it, and is announced afterwards.
func TestConflict(t *testing.T) {
	told, a := t.TempDir(), vips[0]
	l := newLANOf(t, 1, told)
	l.until(a, 0)
	l.world.Addrs = nil
	l.tell(0)
	l.silent(a)
	printer := l.net.Node("printer")
	on := func(args ...string) string {
		t.Helper()
		var out []byte
		must(t, printer.Do(func() (err error) { out, err = exec.Command("ip", args...).Output(); return err }))
		return string(out)
	}
	on("addr", "add", a.String()+"/32", "dev", "eth0")
	l.world.Addrs = vips
	l.tell(0)
	mac := strings.Fields(on("-br", "link", "show", "eth0"))[2]
	l.refuses(0, a, "the machine with the MAC "+mac+" has it")
	l.until(vips[1], 0) // no other machine has it
	for end := time.Now().Add(newFor + 2*time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if last := l.tape.Last(a).String(); last != mac {
			t.Fatalf("%s said that it has the address, which %s has", last, mac)
		}
	}
	on("addr", "del", a.String()+"/32", "dev", "eth0")
	l.until(a, 0)
	l.refuses(0, a, "")
}

// TestReserved: no node announces the first or last address of its own network, because no machine can have it.
func TestReserved(t *testing.T) {
	l := newLANOf(t, 1, t.TempDir())
	l.until(vips[0], 0)
	addrs := []netip.Addr{netip.MustParseAddr("172.18.0.0"), netip.MustParseAddr("172.18.255.255"), netip.MustParseAddr("fd00:172:18::")}
	l.world.Addrs = slices.Concat(vips, addrs)
	l.tell(0)
	for _, a := range addrs {
		l.refuses(0, a, "it is the network or broadcast address of a network of interface eth0")
	}
	l.until(vips[1], 0)
	l.world.Addrs = vips
	l.tell(0)
	for _, a := range addrs {
		l.refuses(0, a, "")
	}
}

// refuses waits until node i reports that it refuses an address for a reason, and the Service had the same event. An empty
// reason waits until node i does not refuse the address.
func (l *lan) refuses(i int, a netip.Addr, reason string) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		events, _ := os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name+".events"))
		text, _ := os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name+".refused"))
		var all []announce.Standing
		_ = json.Unmarshal(text, &all) // the file may not exist yet
		at := slices.IndexFunc(all, func(s announce.Standing) bool { return s.Addr == a })
		if reason == "" && at < 0 {
			return
		}
		event := fmt.Sprintf("shop/web announceFailed %v is not announced: %s", a, reason)
		if reason != "" && at >= 0 && strings.Contains(all[at].Reason, reason) && !all[at].Up && !all[at].Since.IsZero() && strings.Contains(string(events), event) {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s refuses %s, and its events are %s; want %v: %s", l.nodes[i].Name, text, events, a, reason)
		}
	}
}

// silent waits until no machine answers for an address.
func (l *lan) silent(a netip.Addr) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); l.ask(a) >= 0; {
		if time.Now().After(end) {
			l.t.Fatalf("%v still answers", a)
		}
	}
}
