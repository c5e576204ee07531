package gatewaybench

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A load sends requests to a candidate for a time, and returns the number of answers.
type load struct {
	name string
	send func(t testing.TB, c *candidate, d time.Duration) int
}

// loads has the loads of the benchmark. Requests ask for a route in the middle of the table.
func loads(t testing.TB) []load {
	message := filepath.Join(t.TempDir(), "message")
	if err := os.WriteFile(message, append([]byte{0, 0, 0, 0, 50}, make([]byte, 50)...), 0o600); err != nil {
		t.Fatal(err)
	}
	wrk := func(path string) func(testing.TB, *candidate, time.Duration) int {
		return func(t testing.TB, c *candidate, d time.Duration) int {
			return count(t, c, `(\d+) requests in`, "wrk", "-t1", "-c64", "-d"+seconds(d), "-H", "Host: "+hostOf(5),
				fmt.Sprintf("http://127.0.0.1:%d%s", c.http, path))
		}
	}
	h2 := func(host, path string, more ...string) func(testing.TB, *candidate, time.Duration) int {
		return func(t testing.TB, c *candidate, d time.Duration) int {
			args := append([]string{"-c8", "-m8", "-t1", "-D", seconds(d), fmt.Sprintf("--connect-to=127.0.0.1:%d", c.https)}, more...)
			return count(t, c, `, (\d+) succeeded, 0 failed`, "h2load", append(args, fmt.Sprintf("https://%s:%d%s", host, c.https, path))...)
		}
	}
	return []load{
		{"HTTP/1.1, 200 B", wrk(small)},
		{"HTTP/1.1, 20 kB", wrk(large)},
		{"HTTP/2 over TLS, 200 B", h2(hostOf(5), small)},
		{"gRPC over TLS", h2(grpcHost, "/shop.Cart/Get", "-d", message, "-H", "content-type: application/grpc", "-H", "te: trailers")},
		{"TLS 1.3 handshakes", handshakes},
	}
}

func seconds(d time.Duration) string { return strconv.Itoa(max(1, int(d.Seconds()))) }

var failed = regexp.MustCompile(`Non-2xx|Socket errors|[1-9]\d* (failed|errored|timeout)|[1-9]\d* [345]xx`)

// count runs a program of load, and returns the number in its output.
func count(t testing.TB, c *candidate, pattern, name string, args ...string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if err != nil || m == nil || failed.Match(out) {
		t.Fatalf("%s: %s %q: %v\n%s%s", c.name, name, args, err, out, c.log.String())
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// handshakes makes connections with full handshakes, and closes them. Debian's OpenSSL does not have the post-quantum key
// exchange that Go prefers, so all use X25519.
func handshakes(t testing.TB, c *candidate, d time.Duration) int {
	var done atomic.Int64
	var clients sync.WaitGroup
	until := time.Now().Add(d)
	for range 8 {
		clients.Go(func() {
			for time.Now().Before(until) {
				k, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", fmt.Sprintf("127.0.0.1:%d", c.https),
					&tls.Config{ServerName: hostOf(5), InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
						CurvePreferences: []tls.CurveID{tls.X25519}})
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					return
				}
				k.Close()
				done.Add(1)
			}
		})
	}
	clients.Wait()
	return int(done.Load())
}

// A sample is what one turn of a candidate cost.
type sample struct {
	micros float64 // CPU of the candidate for each request
	rate   float64 // requests a second
}

// A series has the samples of a candidate under a load.
type series []sample

// micros returns the median of the CPU.
func (s series) micros() float64 {
	return s.median(func(i int) float64 { return s[i].micros })
}

// beside returns the median ratio of the CPU to that of another candidate in the same round.
func (s series) beside(o series) float64 {
	return s.median(func(i int) float64 { return s[i].micros / o[i].micros })
}

func (s series) median(of func(round int) float64) float64 {
	values := make([]float64, len(s))
	for i := range s {
		values[i] = of(i)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// rate returns the rate of the fastest turn, which other programs of the machine disturbed least.
func (s series) rate() (best float64) {
	for _, one := range s {
		best = max(best, one.rate)
	}
	return best
}

// benchWorld returns a small world, or skips the benchmark if a program is missing.
func benchWorld(b *testing.B) world {
	for _, program := range []string{"nginx", "caddy", "wrk", "h2load"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip("needs ", program, ": make bench-gateway unpacks it")
		}
	}
	cert, key, err := certificate()
	if err != nil {
		b.Fatal(err)
	}
	return world{Backend: backend(b), GRPC: grpcBackend(b), Routes: 10, Certificates: 10, Cert: cert, Key: key}
}

// BenchmarkGateway prints CPU and rate of each candidate under each load.
func BenchmarkGateway(b *testing.B) {
	w := benchWorld(b)
	big := w
	big.Routes, big.Certificates = 3000, 500
	all := []*candidate{startNginx(b, w), startCaddy(b, w), startOurs(b, w), startOurs(b, big)}
	rounds, turn := number("FAIRWAY_BENCH_ROUNDS", 10), time.Second
	only := regexp.MustCompile(os.Getenv("FAIRWAY_BENCH_LOADS"))
	for b.Loop() {
		for _, l := range loads(b) {
			if !only.MatchString(l.name) {
				continue
			}
			results := map[*candidate]series{}
			for round := range rounds + 1 {
				for _, i := range rand.Perm(len(all)) {
					s := measure(b, all[i], l, turn)
					if round > 0 { // the first one warms up
						results[all[i]] = append(results[all[i]], s)
					}
				}
			}
			show(b, l.name, all, results)
		}
	}
	for _, c := range all {
		b.Logf("resident after all: %-22s %3d MB", c.name, c.resident()>>20)
	}
	b.ReportMetric(0, "ns/op") // the time of everything together says nothing
}

// number returns a number from the environment.
func number(name string, otherwise int) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return cmp.Or(n, otherwise)
}

func measure(t testing.TB, c *candidate, l load, d time.Duration) sample {
	cpu, start := c.cpu(), time.Now()
	n := l.send(t, c, d)
	took := time.Since(start).Seconds()
	if n == 0 {
		t.Fatalf("%s: no answer under %s", c.name, l.name)
	}
	return sample{micros: float64((c.cpu() - cpu).Microseconds()) / float64(n), rate: float64(n) / took}
}

// show prints a table with the ratios to the first candidate, nginx.
func show(b *testing.B, load string, all []*candidate, results map[*candidate]series) {
	first := results[all[0]]
	for _, c := range all {
		s := results[c]
		b.Logf("%-24s %-22s %6.1f µs of CPU (%.2f)   %7.0f a second (%.2f)", load, c.name, s.micros(), s.beside(first), s.rate(), s.rate()/first.rate())
	}
}
