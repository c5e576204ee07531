package userspace_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// childEnv turns the test program into an agent. Like haproxy, the agent is a separate process in the node's namespace.
// It serves vip until its standard input ends.
const childEnv = "FAIRWAY_USERSPACE_SERVES"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		testnet.Main(m)
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child() error {
	dp, err := userspace.New(childConfig())
	if err != nil {
		return err
	}
	defer dp.Close()
	if _, err := dp.Sync(context.Background(), table(api.TCP, netip.MustParseAddrPort(os.Getenv(childEnv)))); err != nil {
		return err
	}
	fmt.Println("serving")
	if os.Getenv(hogEnv) != "" {
		return hog(os.Stdin)
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// begin starts a program in the node's namespace, until the benchmark ends.
func (r *rig) begin(ready string, cmd *exec.Cmd) {
	r.t.Helper()
	in, err := cmd.StdinPipe()
	must(r.t, err)
	out, err := cmd.StdoutPipe()
	must(r.t, err)
	cmd.Stderr = os.Stderr
	must(r.t, r.node.Do(cmd.Start))
	r.t.Cleanup(func() {
		_ = in.Close()
		if ready == "" {
			_ = cmd.Process.Kill() // haproxy does not read its input
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	if ready != "" {
		if line, err := bufio.NewReader(out).ReadString('\n'); line != ready+"\n" {
			r.t.Fatalf("%v said %q, error %v", cmd, line, err)
		}
	}
}

// haproxyAt is haproxy's address on the node.
var haproxyAt = netip.MustParseAddrPort("172.18.0.11:8000")

const haproxyConf = `global
	maxconn 4000
defaults
	mode tcp
	option splice-auto
	timeout connect 10s
	timeout client 60s
	timeout server 60s
listen web
	bind %v
	server one %v
`

// versus is a rig with both proxies in front of one endpoint, whose connections serve handles.
func versus(b *testing.B, serve func(*net.TCPConn)) *rig {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		b.Skip("the program haproxy is not installed [apt-get install haproxy]")
	}
	r := newRig(b, 1)
	r.serve(0, func(c *net.TCPConn) { go serve(c) })
	conf := filepath.Join(b.TempDir(), "haproxy.cfg")
	must(b, os.WriteFile(conf, fmt.Appendf(nil, haproxyConf, haproxyAt, r.at(0)), 0o600))
	r.begin("", exec.Command(path, "-q", "-db", "-f", conf))
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), childEnv+"="+r.at(0).String())
	r.begin("serving", self)
	eventually(b, "haproxy listens", func() bool {
		return r.client.Ask("tcp", haproxyAt, testnet.Patience).Outcome != testnet.Refused
	})
	return r
}

// BenchmarkConnections opens connections through Fairway and through haproxy in turns. Each connection asks for a byte,
// gets it and ends. An iteration is 2,000 connections through each.
func BenchmarkConnections(b *testing.B) {
	const each, workers = 2000, 16
	r := versus(b, func(c *net.TCPConn) {
		defer c.Close()
		one := make([]byte, 1)
		if _, err := c.Read(one); err == nil {
			_, _ = c.Write(one)
		}
	})
	many := func(to netip.AddrPort) time.Duration {
		var wait sync.WaitGroup
		began := time.Now()
		for range workers {
			wait.Go(func() {
				err := r.client.Do(func() error {
					one := []byte{1}
					for range each / workers {
						c, err := net.DialTimeout("tcp", to.String(), patience)
						if err != nil {
							return err
						}
						if _, err = c.Write(one); err == nil {
							_, err = io.ReadFull(c, one)
						}
						_ = c.(*net.TCPConn).SetLinger(0)
						_ = c.Close()
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Error(err)
				}
			})
		}
		wait.Wait()
		return time.Since(began)
	}
	r.compare(b, many, each, "conn/s")
}

// BenchmarkStream carries 256 MB from the endpoint to a client, through Fairway and through haproxy in turns.
func BenchmarkStream(b *testing.B) {
	const size = 256 << 20
	piece := make([]byte, 256<<10)
	r := versus(b, func(c *net.TCPConn) {
		defer c.Close()
		for n := 0; n < size; n += len(piece) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	})
	stream := func(to netip.AddrPort) time.Duration {
		c := r.dial(r.client, to)
		defer c.Close()
		began, got := time.Now(), make([]byte, 256<<10)
		for n := 0; n < size; {
			m, err := c.Read(got)
			if err != nil {
				b.Error(err)
				break
			}
			n += m
		}
		return time.Since(began)
	}
	r.compare(b, stream, size>>20, "MB/s")
}

// compare runs both in turns. It reports the amount per second of each, and the ratio.
func (r *rig) compare(b *testing.B, run func(netip.AddrPort) time.Duration, amount int, unit string) {
	run(vip)
	run(haproxyAt)
	var ours, theirs time.Duration
	n := 0
	for b.Loop() {
		if n++; n%2 == 0 { // alternate the first one
			ours += run(vip)
			theirs += run(haproxyAt)
		} else {
			theirs += run(haproxyAt)
			ours += run(vip)
		}
	}
	b.ReportMetric(float64(n*amount)/ours.Seconds(), "fairway-"+unit)
	b.ReportMetric(float64(n*amount)/theirs.Seconds(), "haproxy-"+unit)
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDeadEndpoint sends 1,000 requests to a Service with one dead endpoint of three, and reports the failures. In
// this mode none fails. In modes where the kernel chooses an endpoint without a check, a third fails.
func BenchmarkDeadEndpoint(b *testing.B) {
	for _, mode := range []struct {
		name string
		open func() (datapath.Datapath, error)
	}{
		{"userspace", func() (datapath.Datapath, error) { return userspace.New(userspace.Config{}) }},
		{"nftables", func() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) }},
		{"iptables", func() (datapath.Datapath, error) { return iptables.New(iptables.Config{}) }},
	} {
		b.Run(mode.name, func(b *testing.B) {
			r := newRig(b, 3)
			var err error
			r.dp, err = mode.open()
			must(b, err)
			for i := 1; i < 3; i++ {
				r.pods[i].Serve("tcp", r.at(i))
			}
			r.sync(table(api.TCP, r.at(0), r.at(1), r.at(2)))
			failed, n := 0, 0
			for b.Loop() {
				n++
				for range 1000 {
					if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
						failed++
					}
				}
			}
			b.ReportMetric(float64(failed)/float64(n), "failed-of-1000")
			b.ReportMetric(0, "ns/op")
		})
	}
}
