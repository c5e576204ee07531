package inspect

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/gateway"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

// routeQuestions are the arguments of `fairway explain` that testdata/route.txtar answers.
var routeQuestions = []string{
	"gateway/shop/front",
	"gateway/shop/front --request GET https://shop.example/cart/5",
	"gateway/shop/front --request https://shop.example/ --header X-Beta: 1",
	"gateway/shop/front --request https://shop.test/",
	"gateway/shop/front --request https://admin.test/",
	"gateway/shop/front --request http://shop.example/x",
	"gateway/shop/front --request http://shop.example:8080/x",
	"httproute/shop/shop",
	"httproute/shop/shop --request https://shop.example/about -o json",
	"httproute/shop/lost --request https://shop.test/",
	"ingress/shop/old",
	"ingress/shop/old --request http://old.example/a",
	"ingress/shop/none",
	"service/shop/web",
	"shop/web --request http://shop.example/",
}

// TestExplainRoute: what `fairway explain` says about gateways and routes. Run with -update to write the answers.
func TestExplainRoute(t *testing.T) {
	const file = "testdata/route.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := snapshot(t, archive.Files[0].Data)
	var got []txtar.File
	for _, q := range routeQuestions {
		got = append(got, txtar.File{Name: q, Data: []byte(explained(s, q))})
	}
	if *update {
		archive.Files = append(archive.Files[:1], got...)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i, f := range got {
		if i+1 >= len(archive.Files) || archive.Files[i+1].Name != f.Name || string(archive.Files[i+1].Data) != string(f.Data) {
			t.Errorf("%s: got\n%s", f.Name, f.Data)
		}
		for line := range strings.Lines(string(f.Data)) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 && !strings.Contains(f.Name, "json") && !strings.HasPrefix(line, "error: ") {
				t.Errorf("%s: a line of %d columns: %s", f.Name, n, line)
			}
		}
	}
}

// explained answers one question as the command does.
func explained(s *kubegateway.Snapshot, q string) string {
	q, json := strings.CutSuffix(q, " -o json")
	q, header, hasHeader := strings.Cut(q, " --header ")
	subject, request, _ := strings.Cut(q, " --request ")
	var headers []string
	if hasHeader {
		headers = []string{header}
	}
	question, isRoute, err := parseRouteQuestion(subject, request, headers)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if !isRoute {
		return "a Service\n"
	}
	answer, err := answerRoute(s, question)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out bytes.Buffer
	format := output.Table
	if json {
		format = output.JSON
	}
	if err := output.Write(&out, format, answer); err != nil {
		return err.Error()
	}
	return out.String()
}

// snapshot is a cluster in which a reader may not see the Secret shop/cert.
func snapshot(t *testing.T, text []byte) *kubegateway.Snapshot {
	t.Helper()
	s := kubegateway.NewSnapshot()
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		o := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		object, err := kubegateway.Convert(o)
		if err != nil {
			t.Fatal(err)
		}
		if g, ok := object.(*gateway.Gateway); ok {
			g.Bind = map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 80}: 20000, {Proto: api.TCP, Port: 443}: 20001}
		}
		s.Set(object)
	}
	s.Table()
	if err := s.Assume(api.Name{Namespace: "shop", Name: "cert"}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"web", "cart"} {
		port := api.PortName{Name: api.Name{Namespace: "shop", Name: name}, Port: "http"}
		for n := range i + 2 {
			s.Services[port] = append(s.Services[port], service.Endpoint{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:80", i, n))})
		}
	}
	return s
}
