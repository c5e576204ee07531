package layer2

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestConflict: a new address that another machine has is not announced, and its Service has an event with the
// machine's MAC. After the machine has given it up, it is announced.
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
	want := "shop/web announceFailed " + a.String() + " is not announced: the machine with the MAC " + mac + " has it"
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(told, "node-1.event"))
		if strings.Contains(string(text), want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the event is %s, want %s", text, want)
		}
	}
	l.until(vips[1], 0) // no other machine has it
	if last := l.tape.Last(a).String(); last != mac {
		t.Errorf("%s said that it has the address, which %s has", last, mac)
	}
	on("addr", "del", a.String()+"/32", "dev", "eth0")
	l.until(a, 0)
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
