// Command bench-scale measures Fairway and the real kube-proxy. The programs run one after the other, in a network namespace
// without links, with equal Services from one API server.
//
//	objects ─→ API server ─┬─→ kube-proxy ──→ kernel   cold start, one change, one
//	  (here)     (here)    └─→ fairway ─────→ kernel   Service, restart, memory, CPU
//
// Both programs report the time at which a change is in the kernel, to the microsecond, in the metric
// kubeproxy_sync_proxy_rules_last_timestamp_seconds. At the end of each run the kernel's own listing must agree.
//
// A size is a number of Services of two endpoints, or 1xN for one Service of N endpoints. Another Service of 100 pods is for
// a rolling update.
//
//	go run ./cmd/bench-scale -sizes 1000,10000,1x5000 -kube-proxy-max 10000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/test/peers/apiserver"
)

// A size is a number of Services and of endpoints for each.
type size struct{ services, endpoints int }

func (s size) String() string {
	if s.services == 1 {
		return fmt.Sprintf("One Service with %d endpoints", s.endpoints)
	}
	return fmt.Sprintf("%d Services with %d endpoints each", s.services, s.endpoints)
}

func parseSize(text string) (size, error) {
	s := size{endpoints: 2}
	many, each, both := strings.Cut(strings.TrimSpace(text), "x")
	n, err := strconv.Atoi(many)
	s.services = n
	if err == nil && both {
		s.endpoints, err = strconv.Atoi(each)
	}
	if err != nil || s.services < 1 || s.endpoints < 2 || s.services*s.endpoints > 1000000 {
		return s, fmt.Errorf("-sizes: %q is neither a number of Services nor 1x and a number of endpoints", text)
	}
	return s, nil
}

// options are the flags.
type options struct {
	sizes        []size
	kubeProxyMax int
	changes      int
	bin          string
	budget       time.Duration
}

const inside = "FAIRWAY_BENCH_INSIDE" // set in the copy of this program in its own namespace

func main() {
	var o options
	sizes := flag.String("sizes", "1000,10000,50000,1x5000", "numbers of Services, each with 2 endpoints, or 1xN, one Service with N endpoints")
	flag.IntVar(&o.kubeProxyMax, "kube-proxy-max", 10000, "measure kube-proxy up to this many Services: it takes minutes beyond")
	flag.IntVar(&o.changes, "changes", 100, "changes of one endpoint to measure (kube-proxy: a fifth, it needs a second for each)")
	flag.StringVar(&o.bin, "bin", "../../bin", "where kube-proxy and fairway are")
	flag.DurationVar(&o.budget, "budget", 20*time.Minute, "end after this time with what was measured")
	flag.Parse()
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := parseSize(text)
		fail(err)
		o.sizes = append(o.sizes, n)
	}
	if os.Getenv(inside) == "" {
		fail(again())
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, o.budget)
	defer cancel()
	fail(run(ctx, o))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

// again runs this program again in its own network namespace. The rules that the programs write end with the namespace.
func again() error {
	if os.Geteuid() != 0 {
		return errors.New("must be root to make a network namespace")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run in a namespace: %w", err)
	}
	return nil
}

const apiAddress = "127.0.0.1:6443"

func run(ctx context.Context, o options) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(configuration), 0o600); err != nil {
		return err
	}
	for _, n := range o.sizes {
		if err := measure(ctx, o, n, config); err != nil {
			return err
		}
	}
	return nil
}

// measure measures both programs at a size and prints the table.
func measure(ctx context.Context, o options, n size, config string) error {
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", apiAddress)
	if err != nil {
		return err
	}
	w := &world{api: apiserver.New(), size: n}
	defer w.api.Serve(listener)()
	w.fill()
	flags := []string{"--config", config, "--master", "http://" + apiAddress}
	var results [2]*result
	if n.services <= o.kubeProxyMax {
		m := &measurement{world: w, name: "kube-proxy", argv: append([]string{filepath.Join(o.bin, "kube-proxy")}, flags...),
			changes: max(3, o.changes/5), pause: 1100 * time.Millisecond}
		if results[0], err = m.run(ctx); err != nil {
			return err
		}
	}
	m := &measurement{world: w, name: "fairway", argv: append([]string{filepath.Join(o.bin, "fairway"), "agent"}, flags...),
		changes: o.changes, pause: 20 * time.Millisecond}
	if results[1], err = m.run(ctx); err != nil {
		return err
	}
	table(os.Stdout, n, results[0], results[1])
	return nil
}
