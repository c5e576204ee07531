package gatewaybench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A candidate is a proxy in a process of its own, with children perhaps.
type candidate struct {
	name        string
	http, https uint16
	ingress     [2]uint16 // the gateway's ports for Ingresses, which are not used
	cmd         *exec.Cmd
	log         strings.Builder // of its output; complete when the process has ended
}

// ports sets ports that are free. They are below the ports that the kernel gives to clients.
func (c *candidate) ports(t testing.TB) {
	for _, p := range []*uint16{&c.http, &c.https, &c.ingress[0], &c.ingress[1]} {
		for tries := 0; *p == 0; tries++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12_000+rand.IntN(18_000)))
			switch {
			case err == nil:
				defer l.Close()
				*p = addrOf(l).Port()
			case tries > 100:
				t.Fatal(err)
			}
		}
	}
}

// run starts a program that ends with the test, and waits until it accepts connections.
func (c *candidate) run(t testing.TB, cmd *exec.Cmd) *candidate {
	t.Helper()
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.cmd = cmd
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its output says more
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if k, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.http)); err == nil {
			k.Close()
			return c
		}
		select {
		case <-ended:
			t.Fatalf("%s has ended:\n%s", c.name, c.log.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen", c.name)
		}
	}
}

// cpu returns the CPU time of the process and its children so far.
func (c *candidate) cpu() (total time.Duration) {
	for _, pid := range c.pids() {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		for _, at := range []int{11, 12} { // utime, stime
			n, _ := strconv.ParseInt(f[at], 10, 64)
			total += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100
		}
	}
	return total
}

// resident returns the resident memory of the process and its children in bytes.
func (c *candidate) resident() (total int64) {
	for _, pid := range c.pids() {
		b, _ := os.ReadFile("/proc/" + pid + "/statm")
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			total += n * int64(os.Getpagesize())
		}
	}
	return total
}

func (c *candidate) pids() []string {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	b, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	return append(strings.Fields(string(b)), pid)
}

// startOurs runs the gateway's server with a compiled table.
func startOurs(t testing.TB, w world) *candidate {
	c := &candidate{name: fmt.Sprintf("fairway, %d routes", w.Routes)}
	c.ports(t)
	w.HTTP, w.HTTPS, w.Ingress = c.http, c.https, c.ingress
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"="+string(text))
	return c.run(t, cmd)
}

// startNginx runs Debian's nginx with the same routes and headers. The settings are those of ingress-nginx where it differs
// from nginx: upstream connections are kept, and clients' connections do not end after some requests.
func startNginx(t testing.TB, w world) *candidate {
	c := &candidate{name: fmt.Sprintf("nginx, %d routes", w.Routes)}
	c.ports(t)
	dir := t.TempDir()
	for file, text := range map[string][]byte{"cert.pem": w.Cert, "key.pem": w.Key} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var servers strings.Builder
	server := func(host, location string) {
		fmt.Fprintf(&servers, `
	server {
		listen 127.0.0.1:%d %s;
		listen 127.0.0.1:%d ssl http2;
		server_name %s;
		location / { %s; }
	}`, c.http, map[bool]string{true: "http2"}[host == "h2."+grpcHost], c.https, host, location)
	}
	for i := range w.Routes {
		server(hostOf(i), "proxy_pass http://web")
	}
	conf := fmt.Sprintf(`
daemon off; pid %[1]s/pid; error_log stderr crit; worker_processes auto; worker_rlimit_nofile 65536;
events { worker_connections 16384; }
http {
	access_log off; keepalive_requests 100000000; server_names_hash_max_size 65536; server_names_hash_bucket_size 128;
	client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem; ssl_protocols TLSv1.2 TLSv1.3; ssl_session_tickets off;
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	proxy_set_header Host $http_host;
	proxy_set_header X-Forwarded-For $remote_addr;
	proxy_set_header X-Forwarded-Host $http_host;
	proxy_set_header X-Forwarded-Proto $scheme;
	proxy_set_header X-Forwarded-Port $server_port;
	proxy_set_header X-Real-IP $remote_addr;
	upstream web { server %[2]s; keepalive 320; keepalive_requests 100000000; }
	upstream grpc { server %[3]s; keepalive 320; keepalive_requests 100000000; }
	server {
		listen 127.0.0.1:%[4]d ssl http2;
		server_name %[5]s;
		location / { grpc_pass grpc://grpc; }
	}
	%[6]s
}`, dir, w.Backend, w.GRPC, c.https, grpcHost, servers.String())
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.run(t, exec.Command("nginx", "-p", dir, "-c", path))
}

// startCaddy runs Debian's Caddy, a gateway on net/http and httputil.ReverseProxy.
func startCaddy(t testing.TB, w world) *candidate {
	c := &candidate{name: "caddy"}
	c.ports(t)
	dir := t.TempDir()
	for file, text := range map[string][]byte{"cert.pem": w.Cert, "key.pem": w.Key} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var sites strings.Builder
	for i := range w.Routes {
		for _, at := range []string{fmt.Sprintf("http://%s:%d", hostOf(i), c.http), fmt.Sprintf("https://%s:%d", hostOf(i), c.https)} {
			tls := ""
			if strings.HasPrefix(at, "https") {
				tls = "tls " + dir + "/cert.pem " + dir + "/key.pem"
			}
			fmt.Fprintf(&sites, "%s {\n\tbind 127.0.0.1\n\t%s\n\treverse_proxy %s {\n\t\ttransport http {\n\t\t\tcompression off\n\t\t\tkeepalive_idle_conns_per_host 320\n\t\t}\n\t}\n}\n", at, tls, w.Backend)
		}
	}
	fmt.Fprintf(&sites, "https://%s:%d {\n\tbind 127.0.0.1\n\ttls %s/cert.pem %s/key.pem\n\treverse_proxy h2c://%s\n}\n", grpcHost, c.https, dir, dir, w.GRPC)
	path := filepath.Join(dir, "Caddyfile")
	text := "{\n\tadmin off\n\tauto_https off\n\tservers {\n\t\tprotocols h1 h2\n\t}\n}\n" + sites.String()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("caddy", "run", "--config", path, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	return c.run(t, cmd)
}
