package forward

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestForwarder: Services with equal ports have addresses and names of their own, follow their pods, and go.
func TestForwarder(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	servers := map[string]string{}
	for _, name := range []string{"web-1", "web-2", "api-1"} {
		servers[name] = tcpServer(t, echo(name))
	}
	dial := func(_ context.Context, b Backend) (PodConn, error) {
		c, err := net.Dial("tcp", servers[b.Pod.Name])
		if err != nil {
			return nil, err
		}
		return testConn{TCPConn: c.(*net.TCPConn)}, nil
	}
	var events []string
	ctx, cancel := context.WithCancel(t.Context())
	f := New(ctx, Config{Dial: dial, Hosts: hosts, Short: "shop", Domain: "cluster.local", Tell: func(e Event) { events = append(events, e.What+" "+e.Target) }})
	target := func(name string, pods ...string) Target {
		x := Target{Service: named(name), Port: 8080}
		for _, p := range pods {
			x.Backends = append(x.Backends, Backend{Pod: named(p), Port: 80})
		}
		return x
	}
	set := func(targets ...Target) {
		t.Helper()
		if err := f.Set(targets, nil); err != nil {
			t.Fatal(err)
		}
	}
	askFor := func(name, want string) {
		t.Helper()
		if got, err := ask(t, fmt.Sprintf("%s:8080", addressOf(t, hosts, name)), []byte("hi")); err != nil || got != want+": hi" {
			t.Errorf("%s answers %q, %v", name, got, err)
		}
	}
	set(target("web", "web-1"), target("api", "api-1"))
	askFor("web.shop.svc.cluster.local", "web-1")
	askFor("api", "api-1")
	set(target("web", "web-2"), target("api", "api-1"))
	askFor("web.shop", "web-2")
	first := addressOf(t, hosts, "web")
	set(target("api", "api-1"))
	set(target("api", "api-1"), target("web", "web-2"))
	if again := addressOf(t, hosts, "web"); again != first {
		t.Errorf("web was at %s, and is at %s", first, again)
	}
	var tables strings.Builder
	WriteTable(&tables, f.Rows())
	if !strings.Contains(tables.String(), "shop/api:8080  api:8080  1") {
		t.Errorf("the table is\n%s", tables.String())
	}
	cancel()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(hosts); string(text) != "127.0.0.1 localhost\n" {
		t.Errorf("at the end the hosts file is\n%s", text)
	}
	want := []string{"forwarded shop/web:8080", "forwarded shop/api:8080", "pods shop/web:8080", "gone shop/web:8080", "forwarded shop/web:8080"}
	if !slices.Equal(events, want) {
		t.Errorf("the events are %q", events)
	}
}

// addressOf looks a name up in a hosts file.
func addressOf(t *testing.T, path, name string) netip.Addr {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && slices.Contains(words[1:], name) {
			return netip.MustParseAddr(words[0])
		}
	}
	t.Fatalf("the hosts file has no %s:\n%s", name, text)
	return netip.Addr{}
}

// TestPorts: without names, each Target has a port of 127.0.0.1: its own if that is free and above 1023.
func TestPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	f := New(ctx, Config{Tell: func(Event) {}})
	var port uint16
	_, _ = fmt.Sscan(strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:"), &port)
	if err := f.Set([]Target{{Service: named("web"), Port: 80}, {Service: named("api"), Port: port}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Rows() {
		if r.At.Port() < 1024 || r.At.Port() == port || r.Name != "" {
			t.Errorf("%+v", r)
		}
	}
	cancel()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCandidates: addresses are loopback addresses, and those of a name differ.
func TestCandidates(t *testing.T) {
	for i := range 1000 {
		name := fmt.Sprintf("web-%d.shop", i)
		a, b := candidate(name, 0), candidate(name, 1)
		if a == b || !loopbacks.Contains(a) || !loopbacks.Contains(b) || a != candidate(name, 0) {
			t.Fatalf("%s: %s, %s", name, a, b)
		}
	}
}
