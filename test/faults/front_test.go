package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// frontAt is where the front listens, beside the API server.
var frontAt = netip.MustParseAddrPort("192.168.49.254:6444")

// A front is what the agents take for the API server: it passes requests on, unless it is
// told to do otherwise. Kubelets and controllers speak to the API server itself.
type front struct {
	server func() *http.Server // makes one
	pass   http.Handler
	close  func() error // ends the server, and cuts its connections

	mu sync.Mutex
	// fault answers a request in the API server's place and returns nil, or returns the
	// request to pass on. nil: all are passed on.
	fault func(http.ResponseWriter, *http.Request) *http.Request
	cert  *tls.Certificate // what it shows
	conns map[net.Conn]struct{}
	seen  map[asked]int // answers of the fault
}

// startFront puts a front between the agents and the API server, with the API server's own
// certificate, and starts the agents again, to use it.
func (l *lab) startFront() *front {
	l.Helper()
	cert, err := tls.LoadX509KeyPair(l.path("pki", "kube-apiserver.crt"), l.path("pki", "kube-apiserver.key"))
	if err != nil {
		l.Fatal(err)
	}
	ca, err := os.ReadFile(l.path("pki", "ca.crt"))
	if err != nil {
		l.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	f := &front{cert: &cert, conns: map[net.Conn]struct{}{}, seen: map[asked]int{}}
	quiet := log.New(&bytes.Buffer{}, "", 0)
	f.pass = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: apiServer}) },
		FlushInterval: -1, // a watch is answered event by event
		ErrorLog:      quiet,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		Transport: &http.Transport{
			ForceAttemptHTTP2: true, DisableCompression: true,
			TLSClientConfig: &tls.Config{RootCAs: roots},
			DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
				err = l.control.Do(func() error {
					conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
					return err
				})
				return conn, err
			},
		},
	}
	f.server = func() *http.Server {
		return &http.Server{
			Handler: f, ErrorLog: quiet, ConnState: f.connState,
			TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate(), nil }},
		}
	}
	f.listen(l)
	l.Cleanup(func() { f.close() })
	l.useFront()
	return f
}

// listen accepts connections.
func (f *front) listen(l *lab) {
	l.Helper()
	var listener net.Listener
	err := l.control.Do(func() (err error) {
		listener, err = net.Listen("tcp", frontAt.String())
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	server := f.server()
	f.close = server.Close
	go func() { _ = server.ServeTLS(listener, "", "") }()
}

// useFront points the agents at the front and starts them again.
func (l *lab) useFront() {
	l.Helper()
	ctx := context.Background()
	patch := fmt.Sprintf(`{"data":{"FAIRWAY_API_SERVER":"https://%s"}}`, frontAt)
	if _, err := l.api.CoreV1().ConfigMaps("kube-system").Patch(ctx, "fairway-agent", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		l.Fatal(err)
	}
	for _, n := range l.nodes {
		l.replaceAgent(n)
	}
}

// replaceAgent deletes the pod of a node's agent and returns when another agent is healthy.
func (l *lab) replaceAgent(n *node) {
	l.Helper()
	ctx := context.Background()
	old := l.agent(n)
	err := l.api.CoreV1().Pods("kube-system").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))},
		metav1.ListOptions{LabelSelector: "k8s-app=fairway-agent", FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		l.Fatal(err)
	}
	l.otherAgent(n, old)
	l.await("the health of the agent on "+n.Name, func() error { return l.healthy(n) })
}

// connState remembers the connections that are open.
func (f *front) connState(c net.Conn, s http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch s {
	case http.StateNew:
		f.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(f.conns, c)
	}
}

// set changes what happens to requests, and cuts all connections, so that what is under way
// is asked again.
func (f *front) set(fault func(http.ResponseWriter, *http.Request) *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
	clear(f.seen)
	for c := range f.conns {
		c.Close()
	}
	clear(f.conns)
}

// ports returns the clients' ports of the connections that are open.
func (f *front) ports() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		all = append(all, strconv.Itoa(int(c.RemoteAddr().(*net.TCPAddr).AddrPort().Port())))
	}
	return all
}

// mend passes all requests on again. Connections stay.
func (f *front) mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = nil
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil {
		if r = fault(w, r); r == nil {
			return
		}
	}
	f.pass.ServeHTTP(w, r)
}

// asked is who asked for what.
type asked struct{ who, kind string }

func ask(r *http.Request) asked { return asked{r.Header.Get("Authorization"), path.Base(r.URL.Path)} }

// count notes that the fault has answered.
func (f *front) count(r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[ask(r)]++
}

// counted returns how often the fault has answered who asks now for what it asks.
func (f *front) counted(r *http.Request) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[ask(r)]
}

// askers returns how many the fault has answered that asked for a kind of object.
func (f *front) askers(kind string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for a := range f.seen {
		if a.kind == kind {
			n++
		}
	}
	return n
}

// answered returns how often the fault has answered.
func (f *front) answered() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, times := range f.seen {
		n += times
	}
	return n
}

// refuse answers with a status as the API server writes it.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"a test","reason":%q,"code":%d}`, reason, code)
}

// slow lets every call take longer.
func (f *front) slow(d time.Duration) {
	f.set(func(_ http.ResponseWriter, r *http.Request) *http.Request {
		f.count(r)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-r.Context().Done():
		case <-timer.C:
		}
		return r
	})
}

// overloaded answers 429 to all.
func (f *front) overloaded() {
	f.set(func(w http.ResponseWriter, r *http.Request) *http.Request {
		f.count(r)
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
		return nil
	})
}

// unauthorized answers 401 to who has one of the tokens.
func (f *front) unauthorized(tokens []string) {
	f.set(func(w http.ResponseWriter, r *http.Request) *http.Request {
		for _, t := range tokens {
			if r.Header.Get("Authorization") == "Bearer "+t {
				f.count(r)
				refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
				return nil
			}
		}
		return r
	})
}

// empty answers every list with no object. The API server itself writes the answer, in
// whatever form it is asked for: it is asked for what has a label that no object has.
func (f *front) empty() {
	f.set(func(w http.ResponseWriter, r *http.Request) *http.Request {
		if r.Method != http.MethodGet || !isList(r.URL.Path) {
			return r
		}
		if continues(r) {
			refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			return nil
		}
		f.count(r)
		q := r.URL.Query()
		q.Set("labelSelector", "faults.fairway.net/none=1")
		r = r.Clone(r.Context())
		r.URL.RawQuery = q.Encode()
		return r
	})
}

// watched passes all requests on, and counts them.
func (f *front) watched() {
	f.set(func(_ http.ResponseWriter, r *http.Request) *http.Request {
		f.count(r)
		return r
	})
}

// listAgain has every agent list anew: of each kind, its watches that would go on from an
// earlier list are refused until it has listed.
func (f *front) listAgain() {
	f.set(func(w http.ResponseWriter, r *http.Request) *http.Request {
		if !continues(r) {
			f.count(r)
		} else if f.counted(r) == 0 {
			refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			return nil
		}
		return r
	})
}

// continues reports whether the request is a watch that goes on from an earlier list. A
// watch that begins with what there is, is a list.
func continues(r *http.Request) bool {
	q := r.URL.Query()
	return q.Get("watch") != "" && q.Get("sendInitialEvents") == ""
}

// isList reports whether the path is that of all objects of a kind.
func isList(p string) bool {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	// api/v1/services, apis/discovery.k8s.io/v1/endpointslices
	return parts[0] == "api" && len(parts) == 3 || parts[0] == "apis" && len(parts) == 4
}
