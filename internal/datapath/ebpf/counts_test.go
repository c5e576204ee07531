package ebpf_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// counted returns a Service of the rig's endpoints with an algorithm.
func (r *rig) counted(addr string, by service.Algorithm) *service.Frontend {
	f := r.front(addr)
	f.Balance = by
	return f
}

// explained returns the texts of the objects of a map, as fairway dump prints them.
func (r *rig) explained(f *service.Frontend, name string) (texts []string) {
	r.t.Helper()
	var all []datapath.Object
	r.do(func() (err error) { all, err = r.dp.Explain(context.Background(), f.Key()); return err })
	for _, o := range all {
		if filepath.Base(o.Name) == name {
			texts = append(texts, o.Text)
		}
	}
	return texts
}

// expectOpen compares the open sockets at each of the rig's endpoints.
func (r *rig) expectOpen(when string, f *service.Frontend, want ...int) {
	r.t.Helper()
	got := strings.Join(r.explained(f, "endpoints"), "\n")
	for i, n := range want {
		at := f.Internal.Endpoints[i].Addr
		if line := fmt.Sprintf("%v . tcp . %d : %d open", at.Addr(), at.Port(), n); !strings.Contains(got+"\n", line+"\n") {
			r.t.Errorf("%s: want %q in\n%s", when, line, got)
		}
	}
}

// hold opens connections from the pod, and returns them.
func (r *rig) hold(to netip.AddrPort, n int) (all []net.Conn) {
	r.t.Helper()
	err := r.client.Do(func() error {
		for range n {
			c, err := dial(to)(&net.Dialer{Timeout: time.Second})
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// TestCounts: each algorithm follows the counts, which survive changes of the list, restarts and mode switches.
func TestCounts(t *testing.T) {
	r := newRig(t)
	lc, random := r.counted("10.96.0.1:80", service.LeastConn), r.counted("10.96.0.2:80", service.Random)
	heavy := r.counted("10.96.0.3:80", service.ShortestDelay)
	nq, six := r.counted("10.96.0.4:80", service.NeverQueue), r.counted(web6.String(), service.LeastConn)
	for _, f := range []*service.Frontend{heavy, nq} {
		f.Internal.Endpoints[1].Weight, f.Internal.Endpoints[0].Weight = 3, 1
	}
	r.sync(lc, random, heavy, nq)
	held := r.hold(lc.Addr, 4)
	r.expectOpen("lc", lc, 2, 2)
	r.expectOpen("another Service of the endpoints", random, 2, 2)

	// An endpoint before the others moves their indexes.
	first := netip.MustParseAddrPort("10.244.1.9:8080")
	wider := r.counted(lc.Addr.String(), service.LeastConn)
	wider.Internal.Endpoints = append([]service.Endpoint{{Addr: first}}, wider.Internal.Endpoints...)
	r.sync(wider, random, heavy, nq)
	r.expectOpen("with one more endpoint", wider, 0, 2, 2)
	r.sync(lc, random, heavy, nq)

	r.reopen()
	r.sync(lc, random, heavy, nq, six)
	r.expectOpen("after a restart", lc, 2, 2)
	for _, c := range r.hold(six.Addr, 2) {
		defer c.Close()
	}
	r.expectOpen("IPv6", six, 1, 1)
	held[0].Close()
	held[1].Close()
	held[2].Close()
	held[3].Close()
	r.expectOpen("all closed", lc, 0, 0)

	held = r.hold(heavy.Addr, 8)
	r.expectOpen("sed with weights of 1 and 3", heavy, 2, 6)
	var done bool
	r.do(func() (err error) { done, err = r.dp.Drain(context.Background()); return err })
	if done {
		t.Error("drained while sockets are open")
	}
	for _, c := range held[:4] {
		c.Close()
	}
	r.sync(lc, random, heavy, nq)
	if n := r.open(heavy, 0) + r.open(heavy, 1); n != 4 {
		t.Errorf("after a switch and back %d are open, want 4", n)
	}
	for _, c := range held[4:] {
		c.Close()
	}
	held = r.hold(nq.Addr, 2)
	r.expectOpen("nq", nq, 1, 1)
	for _, c := range held {
		c.Close()
	}
}

// open returns the open sockets of the i-th endpoint of a frontend.
func (r *rig) open(f *service.Frontend, i int) (n int) {
	at := f.Internal.Endpoints[i].Addr
	for _, text := range r.explained(f, "endpoints") {
		if rest, ok := strings.CutPrefix(text, fmt.Sprintf("%v . tcp . %d : ", at.Addr(), at.Port())); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}

// TestOtherSize: maps with elements of another size are replaced.
func TestOtherSize(t *testing.T) {
	r := newRig(t)
	f := r.counted(web.String(), service.LeastConn)
	r.sync(f)
	held := r.hold(f.Addr, 2)
	r.dp.Close()
	pin := r.pin("socks")
	old, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 20, MaxEntries: 262144, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	if err := old.Pin(pin); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	r.sync(f)
	r.expectOpen("with new maps", f, 0, 0)
	for _, c := range append(held, r.hold(f.Addr, 2)...) {
		c.Close()
	}
	r.expectOpen("after all have closed", f, 0, 0)
}

// TestLayout: maps of another layout are replaced, and a process of this version does not read them.
func TestLayout(t *testing.T) {
	r := newRig(t)
	f := r.counted(web.String(), service.LeastConn)
	r.sync(f)
	held := r.hold(f.Addr, 2)
	settings, err := ebpf.LoadPinnedMap(r.pin("settings"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer settings.Close()
	value, err := settings.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	value[28]++ // the layout, in the order of bytes of the machines that the objects are made for
	if err := settings.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	if texts := append(r.explained(f, "fronts"), r.explained(f, "endpoints")...); len(texts) > 0 {
		t.Errorf("maps of another layout were read: %v", texts)
	}
	r.sync(f)
	r.expectOpen("with new maps", f, 0, 0)
	for _, c := range held {
		c.Close()
	}
	r.expectOpen("after sockets of the old maps have closed", f, 0, 0)
	r.onlyConnectTime()
	r.translated("with new maps", true, r.client, dial(web))
}

// pin returns the path of the only pin with a name.
func (r *rig) pin(name string) string {
	r.t.Helper()
	all, err := filepath.Glob(filepath.Join(bpffs(r.t, r.cgroup), "fairway", "*", name))
	if err != nil || len(all) != 1 {
		r.t.Fatalf("the pins of %s are %v: %v", name, all, err)
	}
	return all[0]
}

// TestReconnect: a socket that connects again after a refusal counts once.
func TestReconnect(t *testing.T) {
	r := newRig(t)
	f := r.counted(web.String(), service.LeastConn)
	dead := r.counted("10.96.0.2:80", service.LeastConn)
	dead.Internal.Endpoints = []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.10:9")}}
	r.sync(f, dead)
	r.onlyConnectTime()
	var fd int
	err := r.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		to         *service.Frontend
		open, dead int
	}{{dead, 0, 1}, {dead, 0, 1}, {f, 1, 0}} {
		err := r.client.Do(func() error {
			return unix.Connect(fd, &unix.SockaddrInet4{Port: int(step.to.Addr.Port()), Addr: step.to.Addr.Addr().As4()})
		})
		if (err == nil) != (step.open > 0) {
			t.Errorf("connect to %v: %v", step.to.Addr, err)
		}
		if a, b := r.open(f, 0)+r.open(f, 1), r.open(dead, 0); a != step.open || b != step.dead {
			t.Errorf("%d sockets are open and %d at the dead endpoint, want %d and %d", a, b, step.open, step.dead)
		}
	}
	unix.Close(fd)
	r.expectOpen("closed", f, 0, 0)
	r.expectOpen("closed", dead, 0)
}

// TestKilled: counts stay exact over many connections and killed clients.
func TestKilled(t *testing.T) {
	r := newRig(t)
	f := r.counted(web.String(), service.LeastConn)
	r.sync(f)
	r.churn(f, 2000, 10)
	r.expectOpen("after all", f, 0, 0)
}

// churn opens and closes connections, while clients with open connections are killed.
func (r *rig) churn(f *service.Frontend, connects, kills int) {
	r.t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			err := r.client.Do(func() error {
				for range connects / 2 {
					c, err := dial(f.Addr)(&net.Dialer{Timeout: 5 * time.Second})
					if err != nil {
						return err
					}
					_ = c.(*net.TCPConn).SetLinger(0) // no port waits
					c.Close()
				}
				return nil
			})
			if err != nil {
				r.t.Error(err)
			}
		})
	}
	for range kills {
		r.killClient(f.Addr)
	}
	wg.Wait()
}

// killClient kills a client with three open connections.
func (r *rig) killClient(to netip.AddrPort) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	script := fmt.Sprintf("for i in 3 4 5; do eval \"exec $i<>/dev/tcp/%v/%d\" || exit 1; done; echo ready; read line", to.Addr(), to.Port())
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	in, out := pipes(r.t, cmd)
	defer in.Close() // ends the client, if the test ends before
	if err := r.client.Do(cmd.Start); err != nil {
		r.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		r.t.Errorf("the client says %q: %v", line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func pipes(t testing.TB, cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// TestSlow: with lc, the share of a slow endpoint follows its speed.
func TestSlow(t *testing.T) {
	r := newRig(t)
	const fast, slow = 40 * time.Millisecond, 160 * time.Millisecond
	f := r.counted(web.String(), service.LeastConn)
	f.Internal.Endpoints = nil
	for i, pause := range []time.Duration{fast, slow, fast} {
		at := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.244.1.2%d", i)), 8080)
		r.lazy(at, pause, byte(i))
		f.Internal.Endpoints = append(f.Internal.Endpoints, service.Endpoint{Addr: at})
	}
	r.sync(f)
	durations := r.askLazy(f.Addr, 12, 5*time.Second)
	var all, speeds float64
	speed := make([]float64, len(durations)) // 1 / the mean duration of a connection, with the machine's other load
	for i, some := range durations {
		var sum time.Duration
		for _, d := range some {
			sum += d
		}
		speed[i] = float64(len(some)) / sum.Seconds()
		all, speeds = all+float64(len(some)), speeds+speed[i]
	}
	share, want := float64(len(durations[1]))/all, speed[1]/speeds
	t.Logf("%v connections, the slow endpoint got %.3f, by its speed %.3f", all, share, want)
	if math.Abs(share/want-1) > 0.1 || share > 0.25 {
		t.Errorf("the slow endpoint got %.3f of the connections, want %.3f", share, want)
	}
	r.expectOpen("after all", f, 0, 0, 0)
}

// askLazy connects for a while, and returns how long the connections to each of three endpoints took.
func (r *rig) askLazy(to netip.AddrPort, clients int, long time.Duration) (durations [3][]time.Duration) {
	stop := time.Now().Add(long)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ask := func() error {
		begin := time.Now()
		c, err := dial(to)(&net.Dialer{Timeout: 5 * time.Second})
		if err != nil {
			return err
		}
		defer c.Close()
		said, err := io.ReadAll(c)
		if err != nil || len(said) != 1 {
			return fmt.Errorf("the endpoint says %q: %w", said, err)
		}
		mu.Lock()
		defer mu.Unlock()
		durations[said[0]] = append(durations[said[0]], time.Since(begin))
		return nil
	}
	for range clients {
		wg.Go(func() {
			err := r.client.Do(func() (err error) {
				for err == nil && time.Now().Before(stop) {
					err = ask()
				}
				return err
			})
			if err != nil {
				r.t.Error(err)
			}
		})
	}
	wg.Wait()
	return durations
}

// lazy serves connections: it says its name, and closes them after a pause.
func (r *rig) lazy(at netip.AddrPort, pause time.Duration, name byte) {
	r.t.Helper()
	var l net.Listener
	err := r.net.Pod(r.node, at.Addr().String(), at.Addr()).Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{name})
			time.AfterFunc(pause, func() { c.Close() })
		}
	}()
}
