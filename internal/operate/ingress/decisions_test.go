package ingress

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
)

// TestSameDecisions: a gateway gives each request the same answer by the Ingresses of an example as by the objects that
// Migrate prints, or a Note of an Ingress of the host says that something differs. The examples have each annotation that
// is obeyed.
func TestSameDecisions(t *testing.T) {
	files, err := filepath.Glob("testdata/migrate/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	used, same, all := map[string]bool{}, 0, 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in := readInput(t, archive.Files[0].Data)
		for _, g := range in.Ingresses {
			for key := range g.Annotations {
				used[strings.TrimPrefix(key, "nginx.ingress.kubernetes.io/")] = true
			}
		}
		n, of := testDecisions(t, filepath.Base(file), in, archive.Files[0].Data)
		same, all = same+n, all+of
	}
	if same*10 < all*7 || same < 300 {
		t.Errorf("only %d of %d requests were answered alike", same, all)
	}
	for _, g := range gateway.AnnotationGroups() {
		for name := range strings.FieldsSeq(g.Names) {
			if g.Fate == gateway.AnnotationObeyed && !used[name] {
				t.Errorf("no example has %s", name)
			}
		}
	}
}

// testDecisions returns the number of requests that get the same answer, and of all requests.
func testDecisions(t *testing.T, file string, in Input, text []byte) (same, all int) {
	var out bytes.Buffer
	result := Migrate(in)
	if err := result.Print(&out); err != nil {
		t.Fatal(err)
	}
	before, after := compile(t, text, true), compile(t, append(append(bytes.Clone(text), "\n---\n"...), out.Bytes()...), false)
	noted := map[string]bool{}
	for _, n := range result.Notes {
		noted[n.Ingress] = noted[n.Ingress] || n.Severity != Needless || n.Part == "spec.rules"
	}
	for _, r := range Requests(in.Ingresses) {
		for _, a := range variants(t, in, r) {
			all++
			old, new := before.answer(a), after.answer(a)
			if old == new {
				same++
				continue
			}
			if !slices.ContainsFunc(in.Ingresses, func(g networkingv1.Ingress) bool {
				return noted[g.Namespace+"/"+g.Name] && slices.ContainsFunc(sites(&g), func(s site) bool { return covers(s.host, r.Host) })
			}) {
				t.Errorf("%s: %v %v\n  Ingress: %s\n  Gateway: %s", file, r, a.Fields, old, new)
			}
		}
	}
	return same, all
}

func covers(pattern, host string) bool {
	suffix, wildcard := strings.CutPrefix(pattern, "*")
	return pattern == "" || pattern == host || wildcard && strings.HasSuffix(host, suffix)
}

// variants returns a request as it is, and with the headers and cookies of canaries.
func variants(t *testing.T, in Input, r Request) (all []*gateway.Ask) {
	t.Helper()
	add := func(headers ...string) {
		if a, err := gateway.ParseAsk(r.String(), headers); err == nil { // else the path is refused
			all = append(all, a)
		}
	}
	add()
	for _, g := range in.Ingresses {
		get := func(key string) string { return g.Annotations[prefix+"canary-"+key] }
		values := []string{"always", "never", "eu-west", cmp.Or(get("by-header-value"), "other")}
		for _, v := range values {
			name, cookie := get("by-header"), get("by-cookie")
			if name != "" {
				add(name + ": " + v)
			}
			if cookie != "" {
				add("Cookie: a=b; " + cookie + "=" + v)
			}
			if name != "" && cookie != "" {
				add(name+": "+v, "Cookie: "+cookie+"=always")
			}
		}
	}
	return all
}

// A compiled cluster answers requests at its two ports.
type compiled struct {
	table      *gateway.Table
	plain, tls uint16
}

// compile compiles objects as a gateway does. Services, certificates and users are there, whatever their names are.
func compile(t *testing.T, text []byte, ingresses bool) compiled {
	t.Helper()
	c := gateway.NewCompiler(gateway.Settings{})
	c.Set(&gateway.Class{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/gateway"})
	c.Set(&gateway.IngressClass{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/ingress"})
	given := map[api.Name]bool{}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		o := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		object, err := kubegateway.Convert(o)
		if err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		switch o := object.(type) {
		case *gateway.Ingress:
			if o.Class = "fairway"; !ingresses {
				continue
			}
		case *gateway.RoutePolicy:
			if o.Invalid != "" {
				t.Errorf("RoutePolicy %s: %s", o.Name.Name, o.Invalid)
			}
		case *gateway.Gateway:
			o.Bind = map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 80}: 20080, {Proto: api.TCP, Port: 443}: 20443}
		}
		c.Set(object)
		if object.Ref().Kind == gateway.KindService {
			given[object.Ref().Name] = true
		}
	}
	for range 2 { // the second round has what needs the first
		c.Table()
		for _, name := range c.Needs().Secrets {
			c.Set(&gateway.Secret{Meta: gateway.Meta{Name: name}, Data: secret(t)})
		}
		for _, name := range c.Needs().Services {
			if !given[name] {
				c.Set(stubService(name))
			}
		}
	}
	if ingresses {
		return compiled{c.Table(), gateway.IngressHTTP, gateway.IngressHTTPS}
	}
	return compiled{c.Table(), 20080, 20443}
}

func stubService(name api.Name) *gateway.Service {
	s := &gateway.Service{Meta: gateway.Meta{Name: name}}
	for _, port := range []uint16{80, 443, 8080, 8089, 8443, 9000, 50051} {
		s.Ports = append(s.Ports, gateway.ServicePort{Proto: api.TCP, Port: port})
	}
	return s
}

// secret returns the data of a Secret that is good for everything: a certificate, its CA, and a user.
var secret = func() func(t *testing.T) map[string][]byte {
	var data map[string][]byte
	return func(t *testing.T) map[string][]byte {
		t.Helper()
		if data != nil {
			return data
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		data = map[string][]byte{
			"tls.crt": cert, "ca.crt": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "auth": []byte("joe:{SHA}abc"),
		}
		return data
	}
}()

// answer writes what a request gets, in words that do not depend on the kind of its objects.
func (c compiled) answer(r *gateway.Ask) string {
	port := c.plain
	if r.TLS() {
		port = c.tls
		h, ok := c.table.Handshake(port, r.ServerName())
		if !ok {
			return "no certificate"
		}
		if h.Passthrough != nil {
			return "passthrough " + backendsText(h.Passthrough)
		}
	}
	d := c.table.Lookup(port, r)
	if d.Outcome != gateway.Serve {
		return "404"
	}
	f, parts := d.Rule.Filters, []string{}
	add := func(name string, value any) {
		if text, _ := json.Marshal(value); string(text) != "null" && string(text) != "0" && string(text) != `""` {
			parts = append(parts, name+" "+string(text))
		}
	}
	add("allow", f.Allow)
	add("deny", f.Deny)
	if e := f.Redirect; e != nil && !(e.OnlyHTTP && r.TLS()) {
		return strings.Join(append(parts, "redirect", fmt.Sprint(cmp.Or(e.Code, 302)), location(d, e, r)), " ")
	}
	if !slices.ContainsFunc(d.Rule.Backends, func(b gateway.Backend) bool { return b.Refused == "" }) {
		return "500"
	}
	add("cors", f.CORS)
	add("limits", f.Limits)
	add("basic auth", f.BasicAuth)
	add("forward auth", f.ForwardAuth)
	add("max body", f.MaxBody)
	add("request headers", f.RequestHeaders)
	add("path", backendPath(d, r))
	if f.Rewrite != nil {
		add("host", f.Rewrite.Host)
	}
	add("mirrors", f.Mirrors)
	add("response headers", f.ResponseHeaders)
	add("access log", f.AccessLog)
	if retry := d.Rule.Retry; retry != nil && !(retry.ConnectOnly && retry.Attempts <= 3) { // else it is the default
		add("retry", retry)
	}
	add("session", d.Rule.Session)
	add("hash", d.Rule.HashBy)
	add("timeouts", []time.Duration{d.Rule.ConnectTimeout, d.Rule.ReadTimeout, d.Rule.SendTimeout, d.Rule.Timeout, d.Rule.BackendTimeout})
	return strings.Join(append(parts, backendsText(d.Rule.Backends)), " ")
}

// backendsText writes backends with their shares of 1,000 requests.
func backendsText(all []gateway.Backend) string {
	shares, total := map[string]uint32{}, uint32(0)
	for _, b := range all {
		text := fmt.Sprintf("%s:%d/%d", b.Service.Name, b.Port, b.Protocol)
		if b.Refused != "" {
			text = "refused"
		}
		if b.TLS != nil {
			text += fmt.Sprintf(" TLS to %q %v %v", b.TLS.ServerName, b.TLS.Insecure, b.TLS.ALPN)
		}
		shares[text] += b.Weight
		total += b.Weight
	}
	var texts []string
	for _, text := range slices.Sorted(maps.Keys(shares)) {
		if shares[text] > 0 {
			texts = append(texts, fmt.Sprintf("%s*%d", text, shares[text]*1000/total))
		}
	}
	return strings.Join(texts, ", ")
}

// location is the header Location of a redirect, in the usual cases.
func location(d gateway.Decision, e *gateway.Redirect, r *gateway.Ask) string {
	uri := r.Path()
	if r.URL.RawQuery != "" {
		uri += "?" + r.URL.RawQuery
	}
	if e.URL != "" {
		return strings.NewReplacer("$request_uri", uri, "$host", r.Host()).Replace(e.URL)
	}
	scheme := "http"
	if r.TLS() {
		scheme = "https"
	}
	host := cmp.Or(e.Host, r.Host())
	if e.Port != 0 && e.Port != 80 && e.Port != 443 {
		host += fmt.Sprintf(":%d", e.Port)
	}
	path := changed(d, e.Path, r.Path())
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	return cmp.Or(e.Scheme, scheme) + "://" + host + path
}

// backendPath is the path that the backend gets, in the usual cases.
func backendPath(d gateway.Decision, r *gateway.Ask) string {
	f := d.Rule.Filters.Rewrite
	switch {
	case f == nil:
		return r.Path()
	case f.Target == "":
		return changed(d, f.Path, r.Path())
	}
	path := f.Target
	for i, group := range d.Captures {
		path = strings.ReplaceAll(path, fmt.Sprintf("$%d", i), group)
	}
	return path
}

func changed(d gateway.Decision, c *gateway.PathChange, path string) string {
	switch {
	case c == nil:
		return path
	case !c.HasPrefix:
		return c.Full
	}
	rest := strings.TrimPrefix(path[min(d.Prefix, len(path)):], "/")
	prefix := strings.TrimSuffix(c.Prefix, "/")
	if rest == "" && !strings.HasSuffix(path, "/") {
		return cmp.Or(prefix, "/")
	}
	return prefix + "/" + rest
}
