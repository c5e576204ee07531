package gateway

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// A schema checks objects as the API server does.
type schema struct {
	validator  validation.SchemaValidator
	structural *structural.Structural
	rules      *cel.Validator
}

// readSchema reads the CustomResourceDefinition of RoutePolicies, which the API server must accept.
func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/components/gateway/routepolicies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &v1); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	v1.Status.StoredVersions = []string{v1.Spec.Versions[0].Name}
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil); err != nil {
		t.Fatal(err)
	}
	for _, err := range crdvalidation.ValidateCustomResourceDefinition(t.Context(), &crd) {
		t.Error(err)
	}
	props := crd.Spec.Validation
	if props == nil {
		props = crd.Spec.Versions[0].Schema
	}
	var s schema
	if s.validator, _, err = validation.NewSchemaValidator(props.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	if s.structural, err = structural.NewStructural(props.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s
}

// faults returns why the API server refuses an object. A field that it does not know is a fault.
func (s schema) faults(t *testing.T, o map[string]any) (all []string) {
	t.Helper()
	for _, err := range validation.ValidateCustomResource(nil, o, s.validator) {
		all = append(all, err.Error())
	}
	errs, _ := s.rules.Validate(t.Context(), field.NewPath(""), s.structural, o, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range errs {
		all = append(all, err.Error())
	}
	before, _ := json.Marshal(o)
	pruning.Prune(o, s.structural, true)
	if after, _ := json.Marshal(o); string(before) != string(after) {
		all = append(all, "unknown fields: "+string(before)+" is kept as "+string(after))
	}
	return all
}

// documents returns the RoutePolicies of a YAML text.
func documents(t *testing.T, text []byte) (all []map[string]any) {
	t.Helper()
	for doc := range strings.SplitSeq(string(text), "---\n") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		if o["kind"] == "RoutePolicy" {
			all = append(all, o)
		}
	}
	return all
}

// TestMigratedPolicies: the API server accepts each RoutePolicy that `fairway ingress migrate` prints.
func TestMigratedPolicies(t *testing.T) {
	s := readSchema(t)
	files, err := filepath.Glob(filepath.Join(root, "internal/operate/ingress/testdata/migrate/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	policies := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range documents(t, archive.Files[1].Data) {
			policies++
			for _, fault := range s.faults(t, o) {
				t.Errorf("%s: %s", filepath.Base(file), fault)
			}
		}
	}
	if policies < 5 {
		t.Errorf("%d RoutePolicies", policies)
	}
}

// TestSchema: the API server accepts and refuses the RoutePolicies of testdata/routepolicies.txtar.
func TestSchema(t *testing.T) {
	s := readSchema(t)
	archive, err := txtar.ParseFile("testdata/routepolicies.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range archive.Files {
		all := documents(t, file.Data)
		if len(all) != 1 {
			t.Fatalf("%s has %d RoutePolicies", file.Name, len(all))
		}
		faults := s.faults(t, all[0])
		_, want, refused := strings.Cut(string(file.Data), "# refused: ")
		want, _, _ = strings.Cut(want, "\n")
		switch {
		case !refused && len(faults) > 0:
			t.Errorf("%s: refused: %v", file.Name, faults)
		case refused && !strings.Contains(strings.Join(faults, "\n"), want):
			t.Errorf("%s: %v, want %s", file.Name, faults, want)
		}
	}
}
