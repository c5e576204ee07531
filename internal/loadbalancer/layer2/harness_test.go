package layer2

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary a speaker. Its value is a world as JSON. Later worlds arrive at its standard input,
// one a line.
const helperEnv = "FAIRWAY_SPEAKER_TEST"

func TestMain(m *testing.M) {
	if text := os.Getenv(helperEnv); text != "" {
		runHelper(text)
		return
	}
	testnet.Main(m)
}

// A world is the state of a helper's API server.
type world struct {
	Self   string
	Nodes  []announce.Node
	Addrs  []netip.Addr
	Voters election.Voters
	Holder string        // of the Lease, if Lease is empty
	Lease  string        // a file with the Lease's holder and end
	Lasts  time.Duration // of the Holder's vote; 0: leaseLasts
	Told   string        // a directory for the speakers' reports
	Slow   bool          // the Source does not answer before the next world
	// Interfaces are the interfaces of the L2Advertisement.
	Interfaces []string
	Routed     bool // the addresses have a BGPAdvertisement and no L2Advertisement
}

// A source is a Source and a Lease with the last world that was read.
type source struct {
	mu    sync.Mutex
	world world
	dirty chan struct{}
}

func (s *source) Synced() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
func (s *source) Dirty() <-chan struct{}                           { return s.dirty }
func (s *source) SetVoters(context.Context, election.Voters) error { return nil }

func (s *source) ReturnVote(context.Context) error { return nil }

// Vote gives the vote to the world's holder.
func (s *source) Vote(context.Context) (until time.Time, err error) {
	switch w := s.now(); {
	case w.Slow:
		return until, errors.New("the API server is away")
	case w.Lease != "":
		return w.vote()
	case w.Holder == w.Self:
		until = time.Now().Add(cmp.Or(w.Lasts, leaseLasts))
	}
	return until, nil
}

// leaseLasts is the duration of a vote of the Lease.
const leaseLasts = 5 * time.Second

// vote asks for the Lease in the file. A holder keeps it until it ends, even if its process is stopped.
func (s world) vote() (until time.Time, err error) {
	f, err := os.OpenFile(s.Lease, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return until, err
	}
	defer f.Close() // releases the lock
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return until, err
	}
	var lease struct {
		Holder string
		Until  time.Time
	}
	if err := json.NewDecoder(f).Decode(&lease); err != nil && !errors.Is(err, io.EOF) {
		return until, err
	}
	if lease.Holder != s.Self && time.Now().Before(lease.Until) {
		return until, nil
	}
	lease.Holder, lease.Until = s.Self, time.Now().Add(leaseLasts)
	text, err := json.Marshal(lease)
	if err != nil {
		return until, err
	}
	if err := f.Truncate(0); err != nil {
		return until, err
	}
	_, err = f.WriteAt(text, 0)
	return lease.Until, err
}

func (s *source) now() world {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world
}

func (s *source) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var next world
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			panic(err)
		}
		s.mu.Lock()
		s.world = next
		s.mu.Unlock()
		s.dirty <- struct{}{}
	}
}

func (s *source) Voters() election.Voters { return s.now().Voters }

func (s *source) Input() announce.Input {
	for s.now().Slow {
		time.Sleep(10 * time.Millisecond)
	}
	return s.now().input()
}

func (s world) input() announce.Input {
	r, _ := ipam.ParseRange("0.0.0.0/0")
	r6, _ := ipam.ParseRange("::/0")
	in := announce.Input{
		Pools: []*ipam.Pool{{Name: "all", Ranges: []ipam.Range{r, r6}}}, L2: []*announce.L2Advertisement{{Name: "all", Interfaces: s.Interfaces}}, Nodes: s.Nodes,
		Services:  []*announce.Service{{Name: api.Name{Namespace: "shop", Name: "web"}, Addrs: s.Addrs, Egress: s.Told != ""}},
		Endpoints: func(api.Name) announce.Endpoints { return announce.Endpoints{Any: true} },
	}
	if s.Routed {
		in.L2, in.Routed = nil, []*announce.BGPAdvertisement{{Name: "all"}}
	}
	return in
}

// tell writes the owners that a speaker reports.
func (s world) tell(all map[netip.Addr]string) { s.write(s.Self, all) }

// grant writes the standing that a speaker reports.
func (s world) grant(g announce.Standing) { s.write(s.Self+".grant", g) }

// refuse writes the refusals that a speaker reports.
func (s world) refuse(all []announce.Standing) { s.write(s.Self+".refused", all) }

// event adds an event of a Service to the speaker's events.
func (s world) event(name api.Name, p api.Problem) {
	if s.Told == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(s.Told, s.Self+".events"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(f, name, p.Reason, p.Message)
		_ = f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// ready writes whether the speaker is ready, when that changes.
func (s world) ready(ctx context.Context, speaker *Speaker) {
	for was := ""; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		now := "ready"
		if err := speaker.Ready(); err != nil {
			now = err.Error()
		}
		if now != was {
			was = now
			s.write(s.Self+".ready", now)
		}
	}
}

func (s world) write(file string, what any) {
	if s.Told == "" {
		return
	}
	text, err := json.Marshal(what)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Told, file+".new"), text, 0o644)
	}
	if err == nil {
		err = os.Rename(filepath.Join(s.Told, file+".new"), filepath.Join(s.Told, file))
	}
	if err != nil {
		panic(err)
	}
}

func runHelper(text string) {
	var w world
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		panic(err)
	}
	holdDown, deadPatience, probeRetry = 500*time.Millisecond, time.Minute, time.Second
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("self", w.Self)
	src := &source{world: w, dirty: make(chan struct{}, 100)}
	go src.read(os.Stdin)
	s := New(Config{
		Log: log, Node: w.Self, Key: []byte("0123456789abcdef0123456789abcdef"), Port: 10280, Source: src, Lease: src,
		Assigned: func(map[api.Name]Assignment) {}, Dead: func([]string) {}, Event: w.event,
		Owners: w.tell, Granted: w.grant, Refused: w.refuse, Metrics: NewMetrics(prometheus.NewRegistry(), w.Self),
	})
	go w.ready(ctx, s)
	err := s.Run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var vips = []netip.Addr{netip.MustParseAddr("172.18.0.200"), netip.MustParseAddr("fd00:172:18::200")}

// A lan has nodes on a bridge, each with a speaker, and a client behind a router.
type lan struct {
	t     *testing.T
	net   *testnet.Net
	world world
	nodes []*machine
	tape  *testnet.Tape
}

// A machine is a node and its speaker's process.
type machine struct {
	*testnet.Host
	cmd   *exec.Cmd
	stdin io.Writer
}

// newLAN starts n speakers.
func newLAN(t *testing.T, n int) *lan { return newLANOf(t, n, "") }

// newLANOf starts n speakers, which write their reports into a directory.
func newLANOf(t *testing.T, n int, told string) *lan {
	l := &lan{t: t, net: testnet.New(t), world: world{Addrs: vips, Voters: election.Voters{Epoch: 1}, Told: told}}
	for i := range n {
		h := l.net.Node(fmt.Sprintf("node-%d", i+1))
		l.nodes = append(l.nodes, &machine{Host: h})
		l.world.Nodes = append(l.world.Nodes, announce.Node{Name: h.Name, Addrs: h.Addrs})
		l.world.Voters.Names = append(l.world.Voters.Names, h.Name)
		for _, s := range []string{"ipv4/conf/all/arp_ignore", "ipv4/conf/eth0/arp_ignore"} {
			must(t, h.Sysctl(s, "1")) // the address is on lo for the test's server, and the kernel must not answer for it
		}
		must(t, h.Do(func() error {
			return exec.Command("sh", "-c", fmt.Sprintf("ip addr add %v/32 dev lo && ip addr add %v/128 dev lo nodad", vips[0], vips[1])).Run()
		}))
		for _, a := range vips {
			h.Serve("udp", netip.AddrPortFrom(a, 8080))
			h.Serve("tcp", netip.AddrPortFrom(a, 8080))
		}
	}
	l.tape = testnet.Record(t, l.net.Fabric, vips...)
	for i := range n {
		l.start(i)
	}
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts the speaker of node i.
func (l *lan) start(i int) {
	m := l.nodes[i]
	w := l.world
	w.Self = m.Name
	text, err := json.Marshal(w)
	must(l.t, err)
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	m.cmd.Stderr = os.Stderr
	m.stdin, err = m.cmd.StdinPipe()
	must(l.t, err)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(l.t, m.Do(m.cmd.Start))
	cmd := m.cmd
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// tell sends the world to the speakers of these nodes.
func (l *lan) tell(nodes ...int) {
	l.t.Helper()
	for _, i := range nodes {
		w := l.world
		w.Self = l.nodes[i].Name
		text, err := json.Marshal(w)
		must(l.t, err)
		_, err = l.nodes[i].stdin.Write(append(text, '\n'))
		must(l.t, err)
	}
}

// signal sends a signal to the speaker of node i.
func (l *lan) signal(i int, s syscall.Signal) { must(l.t, l.nodes[i].cmd.Process.Signal(s)) }

// kill kills the speaker of node i.
func (l *lan) kill(i int) {
	l.signal(i, syscall.SIGKILL)
	_ = l.nodes[i].cmd.Wait()
}

// ask asks an address once and returns the index of the node that answers; -1: no answer.
func (l *lan) ask(a netip.Addr) int {
	answer := l.net.Outside.Ask("udp", netip.AddrPortFrom(a, 8080), 300*time.Millisecond)
	return slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == answer.By })
}

// owner waits until a node except these answers for an address, and returns it. It waits as long as a busy machine may
// need.
func (l *lan) owner(a netip.Addr, but ...int) int {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		if i := l.ask(a); i >= 0 && !slices.Contains(but, i) {
			return i
		}
	}
	l.t.Fatalf("nobody but %v answers for %v", but, a)
	return -1
}

// best returns the owner of an address while all nodes are healthy.
func (l *lan) best(a netip.Addr) int {
	c, _ := announce.Decide(l.world.input())[a].Owner(nil)
	return slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == c.Node })
}

// until waits until a node answers for an address.
func (l *lan) until(a netip.Addr, node int) {
	var others []int
	for i := range l.nodes {
		if i != node {
			others = append(others, i)
		}
	}
	l.owner(a, others...)
}
