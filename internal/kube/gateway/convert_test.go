package gateway

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

var update = flag.Bool("update", false, "write the golden files")

// TestConvert: each kind as the API has it, and the object of the model. Run with -update to write the expected part.
func TestConvert(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testConvert(t, path) })
	}
}

func testConvert(t *testing.T, path string) {
	all, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(all.Files); i += 2 {
		in, want := all.Files[i], &all.Files[i+1]
		var got strings.Builder
		for _, o := range readDocuments(t, in.Name, in.Data) {
			object, err := Convert(o)
			if err != nil {
				fmt.Fprintf(&got, "%s: %v\n", o.GetKind(), err)
				continue
			}
			fmt.Fprintf(&got, "%s %s\n", object.Ref().Kind, object.Ref().Name)
			dump(&got, "  ", reflect.ValueOf(object).Elem())
		}
		if *update {
			want.Data = []byte(got.String())
		} else if got.String() != string(want.Data) {
			t.Errorf("%s is read as\n%swant\n%s", in.Name, got.String(), want.Data)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(all), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readDocuments reads the documents of a YAML text.
func readDocuments(t *testing.T, name string, text []byte) (all []*unstructured.Unstructured) {
	t.Helper()
	for doc := range strings.SplitSeq(string(text), "---\n") {
		o := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// dump writes the fields of a struct that are not zero, a line each.
func dump(w *strings.Builder, indent string, v reflect.Value) {
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if f.IsZero() || name == "Name" && v.Type() == reflect.TypeFor[gateway.Meta]() {
			continue
		}
		if v.Type().Field(i).Anonymous && f.Kind() == reflect.Struct {
			dump(w, indent, f)
			continue
		}
		dumpValue(w, indent, name, f)
	}
}

func dumpValue(w *strings.Builder, indent, name string, f reflect.Value) {
	switch f.Type() {
	case reflect.TypeFor[api.Selector](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[[]byte]():
		fmt.Fprintf(w, "%s%s: %s\n", indent, name, f.Interface())
		return
	}
	switch f.Kind() {
	case reflect.Pointer:
		if f.IsNil() {
			fmt.Fprintf(w, "%s%s: nil\n", indent, name)
			return
		}
		dumpValue(w, indent, name, f.Elem())
	case reflect.Struct:
		fmt.Fprintf(w, "%s%s\n", indent, name)
		dump(w, indent+"  ", f)
	case reflect.Slice:
		for i := range f.Len() {
			dumpValue(w, indent, fmt.Sprintf("%s[%d]", name, i), f.Index(i))
		}
	case reflect.Map:
		keys := f.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, k := range keys {
			dumpValue(w, indent, fmt.Sprintf("%s[%v]", name, k), f.MapIndex(k))
		}
	default:
		fmt.Fprintf(w, "%s%s: %v\n", indent, name, f.Interface())
	}
}

// FuzzConvert reads any JSON as each kind. Nothing makes the program fail, and the object says its name.
func FuzzConvert(f *testing.F) {
	all, err := txtar.ParseFile("testdata/convert.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for i := 0; i+1 < len(all.Files); i += 2 {
		for doc := range strings.SplitSeq(string(all.Files[i].Data), "---\n") {
			text, err := yaml.YAMLToJSON([]byte(doc))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var content map[string]any
		if json.Unmarshal(text, &content) != nil {
			return
		}
		o := &unstructured.Unstructured{Object: content}
		for _, k := range customKinds {
			object, err := k.convert(o)
			if err == nil && object.Ref() != (gateway.Ref{Kind: k.kind, Name: api.Name{Namespace: o.GetNamespace(), Name: o.GetName()}}) {
				t.Errorf("%v is read as %v", o.GetName(), object.Ref())
			}
			checkStatus(t, k.kind, readStatus(k.kind, o))
		}
		ingress, binds := new(networkingv1.Ingress), new(corev1.ConfigMap)
		if json.Unmarshal(text, ingress) == nil {
			_ = convertIngress(ingress)
			_ = readIngressStatus(ingress)
		}
		if json.Unmarshal(text, binds) == nil {
			for uid, ports := range convertBinds(binds).ports {
				if again := parsePorts(formatPorts(ports)); !reflect.DeepEqual(ports, again) {
					t.Errorf("the ports of %q are %v, and again %v", uid, ports, again)
				}
			}
		}
	})
}

// checkStatus writes a status that was read. Reading it again gives the same.
func checkStatus(t *testing.T, kind gateway.Kind, s *status) {
	t.Helper()
	wire, err := json.Marshal(map[string]any{"status": s.ours.wire(kind, s, time.Time{})})
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(wire, &o.Object); err != nil {
		t.Fatal(err)
	}
	want := s.ours.of(kind)
	if again := readStatus(kind, o).ours.of(kind); !reflect.DeepEqual(want, again) {
		t.Errorf("%s: the status\n%+v is read again as\n%+v", kind, want, again)
	}
}
