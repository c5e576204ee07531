package dns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

// benchCorefile is kubeadm's Corefile before 1.33, whose cache includes the names of the cluster. Only its ports differ,
// because both servers run at once.
const benchCorefile = `.:%[1]d {
    errors
    health :%[2]d
    ready :%[3]d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint %[5]s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :%[4]d
    forward . %[6]s {
        max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`

// BenchmarkBesideCoreDNS runs CoreDNS and this server with the same Corefile and 10,000 Services. It prints questions a
// second, and the CPU of the server's process a question. Each server has the same core, and the client another one.
func BenchmarkBesideCoreDNS(b *testing.B) {
	if kind := os.Getenv(benchChild); kind != "" {
		benchServer(b, kind)
		return
	}
	if !aloneBench(b) {
		return
	}
	api := newAPIServer(b)
	questions := benchCluster(api)
	up, _ := upstream(b, "192.0.2.7")
	var servers []*benched
	for i, kind := range []string{"coredns", "fairway"} {
		port := 5340 + 10*i
		path := filepath.Join(b.TempDir(), "Corefile")
		rewrite(b, path, benchCorefile, port, port+1, port+2, port+3, api.URL, up)
		servers = append(servers, startBenched(b, kind, path, port))
	}
	out := &bytes.Buffer{}
	tab := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "questions\tserver\tthousands/s\tCPU µs\tratio of CPU\tclient's CPU µs\tlost")
	for _, q := range questions {
		var base float64
		for _, s := range servers {
			s.load(b, q.wires, 4, 32, 300*time.Millisecond) // warm
		}
		best := map[*benched]benchResult{}
		for range 3 {
			for _, s := range servers {
				r := s.load(b, q.wires, q.sockets, q.burst, time.Second)
				if was, ok := best[s]; !ok || r.cpu < was.cpu {
					r.rate = max(r.rate, was.rate)
					best[s] = r
				} else {
					was.rate = max(r.rate, was.rate)
					best[s] = was
				}
			}
		}
		for _, s := range servers {
			r := best[s]
			if base == 0 {
				base = r.cpu
			}
			fmt.Fprintf(tab, "%s\t%s\t%.1f\t%.1f\t%.2f\t%.1f\t%d\n", q.what, s.kind, r.rate/1000, r.cpu, r.cpu/base, r.client, r.lost)
		}
	}
	for _, s := range servers {
		fmt.Fprintf(tab, "resident memory\t%s\t%d MB\t\t\t\t\n", s.kind, s.memory()>>20)
	}
	tab.Flush()
	fmt.Println(out)
}

const benchChild = "FAIRWAY_BENCH_DNS"

// aloneBench runs the benchmark once more in a network namespace of its own.
func aloneBench(b *testing.B) bool {
	const child = "FAIRWAY_BENCH_DNS_ALONE"
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.CommandContext(b.Context(), "/proc/self/exe", "-test.run=^$", "-test.bench=^"+b.Name()+"$", "-test.benchtime=1x", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
	return false
}

// benchServer is the process of one server. It serves until it gets SIGTERM.
func benchServer(b *testing.B, kind string) {
	path := os.Getenv("FAIRWAY_BENCH_COREFILE")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if kind == "fairway" {
		if err := New(Config{Corefile: path, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}).Run(ctx); err != nil {
			b.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	order := slices.DeleteFunc(Plugins(), func(name string) bool { return name == "clients" || name == "names" })
	if err := dnsserver.SetDirectives(order); err != nil {
		b.Fatal(err)
	}
	dnsserver.Quiet, caddy.Quiet = true, true
	in := caddy.CaddyfileInput{Filepath: path, Contents: data, ServerTypeName: "dns"}
	caddy.SetDefaultCaddyfileLoader("bench", caddy.LoaderFunc(func(string) (caddy.Input, error) { return in, nil }))
	if _, err := caddy.Start(in); err != nil {
		b.Fatal(err)
	}
	<-ctx.Done()
}

// A benched is a server under load.
type benched struct {
	kind string
	port int
	pid  int
}

func startBenched(b *testing.B, kind, path string, port int) *benched {
	cmd := exec.Command("taskset", "-c", "1", "/proc/self/exe", "-test.run=^$", "-test.bench=^BenchmarkBesideCoreDNS$", "-test.benchtime=1x", "-test.timeout=10m")
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd.Args[3] = exe
	if dir := os.Getenv("FAIRWAY_BENCH_PROFILES"); dir != "" {
		cmd.Args = append(cmd.Args, "-test.cpuprofile="+filepath.Join(dir, kind+".prof"))
	}
	cmd.Env = append(os.Environ(), benchChild+"="+kind, "FAIRWAY_BENCH_COREFILE="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	deadline := time.Now().Add(30 * time.Second)
	for {
		m, err := ask("udp", port, "svc-1.ns-1.svc.cluster.local.", dns.TypeA)
		if err == nil && len(m.Answer) == 1 {
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s does not answer: %v %v", kind, m, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return &benched{kind, port, cmd.Process.Pid}
}

// cpu returns the CPU time of the process.
func (s *benched) cpu() time.Duration {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// ownCPU returns the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (s *benched) memory() int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.pid))
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

type benchResult struct {
	rate   float64 // a second
	cpu    float64 // of the server, µs a question
	client float64 // CPU of the client, µs a question
	lost   int
}

// load asks questions for a time. Each socket has a burst of questions under way.
func (s *benched) load(b *testing.B, wires [][]byte, sockets, burst int, d time.Duration) (r benchResult) {
	start, before, own := time.Now(), s.cpu(), ownCPU()
	type part struct{ done, lost int }
	parts := make(chan part)
	for range sockets {
		go func() {
			var p part
			c, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", s.port))
			if err != nil {
				b.Error(err)
			}
			defer c.Close()
			pc := ipv4.NewPacketConn(c.(*net.UDPConn))
			out, in := make([]ipv4.Message, burst), make([]ipv4.Message, burst)
			for i := range in {
				in[i].Buffers = [][]byte{make([]byte, 2048)}
			}
			for time.Since(start) < d {
				for i := range out {
					out[i].Buffers = [][]byte{wires[rand.IntN(len(wires))]}
				}
				for sent := 0; sent < burst; {
					n, err := pc.WriteBatch(out[sent:], 0)
					if err != nil {
						b.Error(err)
						break
					}
					sent += n
				}
				_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				got := 0
				for got < burst {
					n, err := pc.ReadBatch(in, 0)
					if err != nil {
						p.lost += burst - got
						break
					}
					got += n
				}
				p.done += got
			}
			parts <- p
		}()
	}
	done := 0
	for range sockets {
		p := <-parts
		done += p.done
		r.lost += p.lost
	}
	r.rate = float64(done) / time.Since(start).Seconds()
	r.cpu = float64((s.cpu() - before).Nanoseconds()) / float64(max(done, 1)) / 1000
	r.client = float64((ownCPU() - own).Nanoseconds()) / float64(max(done, 1)) / 1000
	return r
}

// A benchKind is a kind of questions, as packed messages.
type benchKind struct {
	what           string
	sockets, burst int
	wires          [][]byte
}

// benchCluster makes 10,000 Services, a tenth of them headless, and questions about them.
func benchCluster(api *apiServer) []benchKind {
	kinds := []benchKind{
		{"ClusterIP, A", 4, 32, nil}, {"ClusterIP, AAAA (no data)", 4, 32, nil}, {"search path (no such name)", 4, 32, nil}, {"headless, 3 pods", 4, 32, nil},
		{"names outside", 4, 32, nil},
	}
	add := func(kind int, name string, qtype uint16) {
		m := new(dns.Msg).SetQuestion(name, qtype)
		wire, err := m.Pack()
		if err != nil {
			panic(err)
		}
		kinds[kind].wires = append(kinds[kind].wires, wire)
	}
	for ns := range 100 {
		api.put("namespaces", "", fmt.Sprintf("ns-%d", ns), object{})
	}
	for i := range 10000 {
		ns, name := fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("svc-%d", i)
		full := name + "." + ns + ".svc.cluster.local."
		ip := fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)
		if i%10 == 0 {
			ip = "None"
			add(3, full, dns.TypeA)
		} else {
			add(0, full, dns.TypeA)
			add(1, full, dns.TypeAAAA)
		}
		api.put("services", ns, name, object{"spec": object{"type": "ClusterIP", "clusterIP": ip, "clusterIPs": []string{ip},
			"ports": []object{{"name": "http", "protocol": "TCP", "port": 80}}}})
		var endpoints []object
		for e := range 3 {
			endpoints = append(endpoints, object{"addresses": []string{fmt.Sprintf("10.%d.%d.%d", 128+e, i/250, 1+i%250)}, "conditions": object{"ready": true}})
		}
		api.put("endpointslices", ns, name+"-x", object{"labels": object{"kubernetes.io/service-name": name}, "addressType": "IPv4",
			"ports": []object{{"name": "http", "protocol": "TCP", "port": 8080}}, "endpoints": endpoints})
	}
	for i := range 50 {
		host := fmt.Sprintf("www%d.example.com.", i)
		add(4, host, dns.TypeA)
		for ns := range 50 {
			for _, suffix := range []string{fmt.Sprintf("ns-%d.svc.cluster.local.", ns), "svc.cluster.local.", "cluster.local."} {
				add(2, host+suffix, dns.TypeA)
			}
		}
	}
	return append(kinds, benchKind{"ClusterIP, A, one at a time", 1, 1, kinds[0].wires})
}
