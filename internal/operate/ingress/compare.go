package ingress

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/text"
)

// Bounds of Compare.
const (
	answerTimeout = 10 * time.Second
	maxBody       = 1 << 20 // of an answer that is read
	repeats       = 6       // of a request whose answers differ in body or headers
	inFlight      = 8       // requests
)

// An Address is where a controller listens.
type Address struct {
	Addr      netip.Addr
	HTTP, TLS uint16 // ports
}

// A Difference is what two controllers answer differently to one request.
type Difference struct {
	Request string `json:"request"`
	Part    string `json:"part"`
	Old     string `json:"old"`
	New     string `json:"new"`
}

// compared are the headers that matter to a client. Others, as Date and Server, differ anyhow.
var compared = []string{"Location", "Content-Type", "Content-Encoding", "Www-Authenticate", "Strict-Transport-Security", "Cache-Control", "Etag",
	"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Allow-Credentials",
	"Access-Control-Max-Age", "Access-Control-Expose-Headers", "X-Frame-Options", "Content-Security-Policy"}

// A Report is what Compare found.
type Report struct {
	Requests    int          `json:"requests"`
	Differences []Difference `json:"differences"`
}

// WriteTable writes the differences under their requests.
func (r Report) WriteTable(w io.Writer, _ bool) error {
	last := ""
	for _, d := range r.Differences {
		if d.Request != last {
			if _, err := fmt.Fprintln(w, d.Request); err != nil {
				return err
			}
			last = d.Request
		}
		if _, err := fmt.Fprintf(w, "  %s: %s -> %s\n", d.Part, d.Old, d.New); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "requests: %d, differences: %d\n", r.Requests, len(r.Differences))
	return err
}

// Compare sends each request to both controllers. A difference in the body or a header counts if each controller repeats its
// answer, because the pods of a backend may differ. The differences are in the order of the requests. Only an error of ctx
// ends it.
func Compare(ctx context.Context, oldOne, newOne Address, requests []Request) (Report, error) {
	results := make([][]Difference, len(requests))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for i, r := range requests {
		g.Go(func() error {
			results[i] = compareOne(ctx, oldOne, newOne, r)
			return ctx.Err()
		})
	}
	err := g.Wait()
	return Report{len(requests), slices.Concat([]Difference{}, slices.Concat(results...))}, err
}

// compareOne compares the answers to one request.
func compareOne(ctx context.Context, oldOne, newOne Address, r Request) []Difference {
	was, is := askBoth(ctx, oldOne, newOne, r)
	found := was.differences(is, r)
	for range repeats {
		if !slices.ContainsFunc(found, func(d Difference) bool { return mayChange(d.Part) }) {
			break
		}
		wasAgain, isAgain := askBoth(ctx, oldOne, newOne, r)
		found = slices.DeleteFunc(found, func(d Difference) bool {
			return mayChange(d.Part) && (was.part(d.Part) != wasAgain.part(d.Part) || is.part(d.Part) != isAgain.part(d.Part))
		})
	}
	return found
}

// mayChange reports whether a part of an answer may differ between two pods of a backend.
func mayChange(part string) bool { return part == partBody || slices.Contains(compared, part) }

func askBoth(ctx context.Context, oldOne, newOne Address, r Request) (was, is answer) {
	var other sync.WaitGroup
	other.Go(func() { is = ask(ctx, newOne, r) })
	was = ask(ctx, oldOne, r)
	other.Wait()
	return was, is
}

// The parts of an answer besides the headers.
const (
	partStatus      = "status"
	partCertificate = "certificate"
	partCookies     = "cookies"
	partBody        = "body"
)

// differences lists the parts that differ. Bodies of errors and redirects are the controllers' own.
func (a answer) differences(b answer, r Request) (found []Difference) {
	parts := append([]string{partStatus, partCertificate}, compared...)
	if parts = append(parts, partCookies); a.status == b.status && len(a.status) == 3 && a.status[0] == '2' {
		parts = append(parts, partBody)
	}
	for _, name := range parts {
		if was, is := a.part(name), b.part(name); was != is {
			found = append(found, Difference{Request: r.String(), Part: name, Old: cmp.Or(was, "(none)"), New: cmp.Or(is, "(none)")})
		}
	}
	return found
}

func (a answer) part(name string) string {
	switch name {
	case partStatus:
		return a.status
	case partCertificate:
		return a.certificate
	case partCookies:
		return a.cookies
	case partBody:
		return a.body
	}
	return a.headers.Get(name)
}

// An answer is what a client sees.
type answer struct {
	status      string // the code, or why there is none
	headers     http.Header
	cookies     string // their names
	body        string // a hash
	certificate string
}

// ask sends a request to a controller. Certificates are compared, not verified.
func ask(ctx context.Context, to Address, r Request) answer {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	port := to.HTTP
	if r.TLS {
		port = to.TLS
	}
	transport := &http.Transport{
		DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{ServerName: r.Host, InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(to.Addr, port).String())
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.String(), nil)
	if err != nil {
		return answer{status: text.OneLine(err).Error()}
	}
	req.Header.Set("User-Agent", "fairway-ingress-check")
	resp, err := transport.RoundTrip(req) // no redirect is followed
	if err != nil {
		return answer{status: reason(err)}
	}
	defer resp.Body.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(resp.Body, maxBody)); err != nil {
		return answer{status: strconv.Itoa(resp.StatusCode) + ", then " + reason(err), headers: resp.Header}
	}
	a := answer{status: strconv.Itoa(resp.StatusCode), headers: resp.Header, body: hex.EncodeToString(sum.Sum(nil)[:6])}
	var names []string
	for _, c := range resp.Cookies() {
		names = append(names, c.Name)
	}
	a.cookies = strings.Join(names, " ")
	if resp.TLS != nil && len(resp.TLS.PeerCertificates) > 0 {
		c := resp.TLS.PeerCertificates[0]
		a.certificate = fmt.Sprintf("%s, serial %x", cmp.Or(strings.Join(c.DNSNames, " "), c.Subject.String()), c.SerialNumber)
	}
	return a
}

// reason shortens an error to what both controllers' errors have in common, without addresses.
func reason(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &op):
		return text.OneLine(op.Err).Error()
	}
	return text.OneLine(err).Error()
}
